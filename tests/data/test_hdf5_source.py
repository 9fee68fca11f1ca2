"""HDF5 files against what was written to them."""

import os

import h5py
import numpy as np
import pytest

from elasticflow.data import HDF5, Column
from elasticflow.errors import DataError

IMAGES = np.arange(50 * 6, dtype=np.float32).reshape(50, 2, 3)
NUMBERS = np.array([49, 3, 3, 20, 0])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "digits.h5"
    with h5py.File(path, "w") as file:
        file["images"] = IMAGES
        file.create_dataset("labels", data=np.arange(50, dtype=">i4"), chunks=(8,), compression="gzip")
        file.create_dataset("deep/names", data=[f"row {n}" for n in range(50)], dtype=h5py.string_dtype())
        file.create_dataset("deep/codes", data=np.array([b"ab"] * 50))
        file.create_dataset("deep/short", data=np.arange(49))
        file.create_dataset("deep/one", data=3.0)
        file.create_dataset("deep/none", shape=(0, 3))
        file.create_dataset("deep/ragged", shape=(50,), dtype=h5py.vlen_dtype(np.int32))
    return path


@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
def test_rows(path, block_bytes):
    source = HDF5(path, x="images", y="labels", name="deep/names", code="deep/codes", block_bytes=block_bytes)
    rows = source.rows(NUMBERS)
    assert np.array_equal(rows["x"], IMAGES[NUMBERS])
    assert np.array_equal(rows["y"], NUMBERS)
    assert rows["y"].dtype == np.dtype("int32")
    assert rows["name"].tolist() == [f"row {n}" for n in NUMBERS]
    assert rows["code"].tolist() == [b"ab"] * 5
    assert source.columns == (
        Column("x", (2, 3), "float32"),
        Column("y", (), "int32"),
        Column("name", (), "str"),
        Column("code", (), "bytes"),
    )


def test_blocks_are_whole_chunks(path):
    assert HDF5(path, y="labels", block_bytes=100).block_starts.tolist() == [0, 24, 48, 50]
    assert HDF5(path, y="labels", block_bytes=1).block_starts.tolist() == [0, 8, 16, 24, 32, 40, 48, 50]
    assert HDF5(path, x="images", block_bytes=24 * 20).block_starts.tolist() == [0, 20, 40, 50]


def test_without_names_the_datasets_of_the_root_are_the_columns(path):
    assert [column.name for column in HDF5(path).columns] == ["images", "labels"]


@pytest.mark.parametrize(
    "names, words",
    [
        ({"x": "image"}, "no dataset 'image'. There are: 'images', 'labels'"),
        ({"x": "deep"}, "no dataset 'deep'"),
        ({"x": "images", "y": "deep/short"}, "'images' has 50, 'deep/short' has 49"),
        ({"x": "deep/one"}, "'deep/one' is a single value"),
        ({"x": "deep/none"}, "is empty"),
        ({"x": "deep/ragged"}, "'deep/ragged' has elements of type object"),
    ],
)
def test_datasets_that_do_not_fit(path, names, words):
    with pytest.raises(DataError, match=words):
        HDF5(path, **names)


def test_a_file_that_is_missing_cut_short_or_something_else(path, tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        HDF5(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(DataError, match="is no HDF5 file"):
        HDF5(tmp_path / "text.h5")
    content = path.read_bytes()
    (tmp_path / "short.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="short.h5 is damaged"):
        HDF5(tmp_path / "short.h5")


def test_a_file_without_datasets(tmp_path):
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(DataError, match="no columns"):
        HDF5(tmp_path / "empty.h5")


def test_a_damaged_chunk_is_found_when_it_is_read(path):
    with h5py.File(path) as file:
        chunk = file["labels"].id.get_chunk_info(6)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    source = HDF5(path, y="labels", block_bytes=1)
    with pytest.raises(DataError, match="damaged"):
        source.rows(np.array([49]))


@pytest.mark.parametrize("kind", ["link", "deep link", "virtual", "storage"])
def test_records_in_another_file_are_refused_and_not_even_opened(tmp_path, kind):
    """The other file is a pipe: who opened it would wait for ever."""
    other = tmp_path / "other.h5"
    os.mkfifo(other)
    with h5py.File(tmp_path / "one.h5", "w") as file:
        if kind == "link":
            file["x"] = h5py.ExternalLink(str(other), "x")
        elif kind == "deep link":
            file["away"] = h5py.ExternalLink(str(other), "/")
            file["group/again"] = h5py.SoftLink("/away")
            file["x"] = h5py.SoftLink("group/again/x")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
            layout[:] = h5py.VirtualSource(str(other), "x", shape=(4,))
            file.create_virtual_dataset("x", layout)
        else:
            file.create_dataset("x", shape=(4,), dtype="f4", external=[(str(other), 0, 16)])
    with pytest.raises(DataError, match=r"other(\.h5|\ files).*name that file instead"):
        HDF5(tmp_path / "one.h5", x="x")


def test_soft_links_are_followed_and_end(path):
    with h5py.File(path, "a") as file:
        file["deep/same"] = h5py.SoftLink("../labels")
        file["deep/labels"] = h5py.SoftLink("/labels")
        file["alias"] = h5py.SoftLink("deep/labels")
        file["round"] = h5py.SoftLink("/round")
    assert HDF5(path, y="alias").rows(NUMBERS)["y"].tolist() == NUMBERS.tolist()
    for name in ("round", "deep/labels/x", "nowhere/at/all"):
        with pytest.raises(DataError, match="no dataset"):
            HDF5(path, y=name)


@pytest.mark.parametrize(
    ("shape", "chunks", "words"),
    [
        ((2**50,), (1 << 20,), "1,125,899,906,842,624 records, in .* blocks"),
        ((3, 2**50), (1, 1 << 20), "1 records, which must be read at once, have 4,503,599,627,370,496 bytes"),
        ((2**31, 2**31), (1, 1), "use a larger block_bytes"),
    ],
)
def test_a_small_file_that_claims_to_be_huge(tmp_path, shape, chunks, words):
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("x", shape=shape, dtype="f4", chunks=chunks)
    assert (tmp_path / "huge.h5").stat().st_size < 10_000
    with pytest.raises(DataError, match=words):
        HDF5(tmp_path / "huge.h5", x="x")


def test_very_many_datasets_have_to_be_named(tmp_path):
    with h5py.File(tmp_path / "many.h5", "w") as file:
        for number in range(4097):
            file.create_group(f"g{number}")
        file["z"] = np.arange(3)
    with pytest.raises(DataError, match="4,098 datasets; name those"):
        HDF5(tmp_path / "many.h5")
    assert HDF5(tmp_path / "many.h5", z="z").num_rows == 3
