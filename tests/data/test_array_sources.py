"""Records in memory and in NPZ files."""

import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from elasticflow.data import NPZ, Arrays, Column, Pad, Ragged
from elasticflow.errors import DataError, UnreadableError

IMAGES = np.arange(7 * 6, dtype=np.float32).reshape(7, 2, 3)
LABELS = np.arange(7, dtype=np.int16)
NUMBERS = np.array([5, 0, 5, 6])


def test_rows_come_in_the_order_asked():
    source = Arrays(x=IMAGES, y=LABELS)
    rows = source.rows(NUMBERS)
    assert np.array_equal(rows["x"], IMAGES[NUMBERS])
    assert np.array_equal(rows["y"], LABELS[NUMBERS])
    assert rows["x"].flags.c_contiguous and rows["x"].flags.owndata
    assert source.columns == (Column("x", (2, 3), "float32"), Column("y", (), "int16"))
    assert len(source) == source.num_rows == 7
    assert not source.positional
    assert source.block_starts is None


def test_rows_are_fresh_and_contiguous_whatever_the_order_in_memory():
    column = np.asfortranarray(IMAGES.reshape(7, 6)).astype(">f4")
    rows = Arrays(x=column).rows(np.arange(7))["x"]
    assert rows.flags.c_contiguous and rows.dtype.isnative
    assert np.array_equal(rows, column)
    rows[:] = 0
    assert column[1, 1] == 7


@pytest.mark.parametrize("lies", ["in Fortran order", "in a part of another", "in an NPZ file", "in order"])
def test_what_is_read_alone_is_copied_however_an_array_lies(lies, tmp_path):
    array = np.arange(1 << 20, dtype=np.float32).reshape(-1, 8)
    np.savez(tmp_path / "data.npz", x=array)
    source = {
        "in Fortran order": lambda: Arrays(x=np.asfortranarray(array)),
        "in a part of another": lambda: Arrays(x=np.hstack([array, array])[:, :8]),
        "in an NPZ file": lambda: NPZ(str(tmp_path / "data.npz")),
        "in order": lambda: Arrays(x=array),
    }[lies]()
    numbers = np.array([7, 100_000, 7])
    tracemalloc.start()
    try:
        rows = source.rows(numbers)["x"]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(rows, array[numbers]) and rows.flags.c_contiguous
    assert most < array.nbytes // 10


def test_records_of_different_lengths():
    texts = Ragged.of([[1, 2], [3], [4, 5, 6]], pad=Pad(value=9, multiple=2))
    source = Arrays(text=texts, y=[0, 1, 2])
    assert source.columns[0] == Column("text", (-1,), "int64", Pad(value=9, multiple=2))
    assert source.optional == ("text_lengths",)
    found = source.finish(source.rows(np.array([1, 0])), 0)
    assert found["text"].tolist() == [[3, 9], [1, 2]] and found["text_lengths"].tolist() == [1, 2]
    with pytest.raises(DataError, match="'text' has 3, 'y' has 2"):
        Arrays(text=texts, y=[0, 1])


def test_no_rows_asked_no_rows_given():
    assert Arrays(x=IMAGES).rows(np.empty(0, np.int64))["x"].shape == (0, 2, 3)


@pytest.mark.parametrize("number", [-1, 7])
def test_rows_out_of_range(number):
    with pytest.raises(IndexError, match="7 rows"):
        Arrays(x=IMAGES).rows(np.array([0, number]))


@pytest.mark.parametrize(
    "value, dtype",
    [
        ([1.0, 2.0], "float32"),
        ([[1.0], (2.0,)], "float32"),
        ([1, 2.5], "float32"),
        ([1, 2], "int64"),
        ([True, False], "bool"),
        (["a", "bcd"], "str"),
        (np.array([1.0, 2.0]), "float64"),
        ([np.array([1.0]), np.array([2.0])], "float64"),
        ([np.float64(1), np.float64(2)], "float64"),
        (np.array([b"a", b"bc"]), "bytes"),
        (torch.tensor([1.0, 2.0]), "float32"),
        (torch.tensor([1, 2], dtype=torch.uint8), "uint8"),
        (np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"), "datetime64[D]"),
    ],
)
def test_dtypes(value, dtype):
    assert Arrays(x=value).columns[0].dtype == dtype


@pytest.mark.parametrize(
    "columns, words",
    [
        ({}, "no columns"),
        ({"x": [1, 2], "y": [1, 2, 3]}, "'x' has 2, 'y' has 3"),
        ({"x": [[1, 2], [3]]}, "write ef.data.Ragged.of"),
        ({"x": np.array(3.0)}, "column 'x' is a single value"),
        ({"x": None}, "column 'x' is a single value"),
        ({"x": np.empty((0, 3))}, "empty: 0 records"),
        ({"x": np.array([{}, []], object)}, "elements of type object"),
        ({"x": np.zeros(2, [("a", "i4")])}, "elements of type"),
        ({"x": torch.ones(2, requires_grad=True)}, "detach"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, "column 'x', a Tensor"),
    ],
)
def test_what_makes_no_columns(columns, words):
    with pytest.raises(DataError, match=words):
        Arrays(**columns)


def test_the_signature_tells_columns_and_lengths_apart():
    sources = [Arrays(x=IMAGES), Arrays(y=IMAGES), Arrays(x=IMAGES[:6]), Arrays(x=IMAGES.astype("f8"))]
    assert len({source.signature for source in sources}) == 4
    assert Arrays(x=IMAGES + 1).signature == sources[0].signature
    assert len(sources[0].signature) == 64


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_what_was_saved(tmp_path, save):
    path = tmp_path / "digits.npz"
    save(
        path, images=IMAGES, labels=LABELS, turned=np.asfortranarray(IMAGES), names=np.array(list("abcdefg"))
    )
    source = NPZ(path, x="images", y="labels", z="turned", name="names")
    rows = source.rows(NUMBERS)
    assert np.array_equal(rows["x"], IMAGES[NUMBERS])
    assert np.array_equal(rows["z"], IMAGES[NUMBERS])
    assert rows["z"].flags.c_contiguous
    assert rows["name"].tolist() == ["f", "a", "f", "g"]
    assert source.columns[1] == Column("y", (), "int16")
    assert type(rows["x"]) is np.ndarray
    assert [column.name for column in NPZ(path).columns] == ["images", "labels", "turned", "names"]


def test_npz_maps_what_is_stored_and_loads_what_is_compressed(tmp_path):
    np.savez(tmp_path / "stored.npz", x=IMAGES)
    np.savez_compressed(tmp_path / "compressed.npz", x=IMAGES)
    assert isinstance(NPZ(tmp_path / "stored.npz")._arrays["x"].base, np.memmap)
    assert not isinstance(NPZ(tmp_path / "compressed.npz")._arrays["x"].base, np.memmap)


def test_npz_that_is_written_to_while_it_is_mapped(tmp_path):
    """Another file in its place changes nothing of what is mapped."""
    for name, images in (("x", IMAGES), ("other", IMAGES + 1)):
        np.savez(tmp_path / f"{name}.npz", x=images)
    source = NPZ(tmp_path / "x.npz")
    before = source.rows(np.arange(2))["x"]
    other = (tmp_path / "other.npz").read_bytes()
    (tmp_path / "x.npz").rename(tmp_path / "old.npz")
    (tmp_path / "other.npz").rename(tmp_path / "x.npz")
    assert (source.rows(np.arange(2))["x"] == before).all()
    source = NPZ(tmp_path / "old.npz")
    with open(tmp_path / "old.npz", "r+b") as file:
        file.write(other)
    with pytest.raises(UnreadableError, match="old.npz has changed"):
        source.rows(np.arange(2))


def test_npz_without_its_file_or_array(tmp_path):
    np.savez(tmp_path / "digits.npz", images=IMAGES, labels=LABELS)
    with pytest.raises(DataError, match="no array 'image'. There are: 'images', 'labels'"):
        NPZ(tmp_path / "digits.npz", x="image")
    with pytest.raises(DataError, match="there is no file .*none.npz"):
        NPZ(tmp_path / "none.npz")
    with pytest.raises(DataError, match="is a directory"):
        NPZ(tmp_path)


def test_npz_never_loads_pickles(tmp_path):
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], object))
    with pytest.raises(DataError, match="'x' has elements of type object"):
        NPZ(tmp_path / "objects.npz")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_npz_that_is_cut_short(tmp_path, share):
    path = tmp_path / "digits.npz"
    np.savez(path, images=IMAGES)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match="damaged or is no NPZ file"):
        NPZ(path)


def test_npz_with_a_member_that_is_no_array_or_too_short(tmp_path):
    np.save(tmp_path / "whole.npy", IMAGES)
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("text.npy", "hello world, this is no array at all")
        archive.writestr("short.npy", (tmp_path / "whole.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match="'text' is no NumPy array"):
        NPZ(tmp_path / "bad.npz", x="text")
    with pytest.raises(DataError, match="'short' is cut short"):
        NPZ(tmp_path / "bad.npz", x="short")
