"""What ``data()`` may return, and what ``--data`` may name."""

import subprocess
import sys

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticflow.data import CSV, HDF5, NPZ, Arrays, Parquet, Source, open_path, open_source
from elasticflow.data.source import Column
from elasticflow.errors import DataError

X, Y = np.zeros((4, 2)), np.arange(4)


def names(source):
    return [column.name for column in source.columns]


def test_a_source_stays_as_it_is():
    source = Arrays(x=X)
    assert open_source(source) == (source, None, ())


def test_a_dict_is_bound_by_name_and_a_tuple_by_position():
    by_name = open_source({"x": X, "y": Y}).train
    assert names(by_name) == ["x", "y"] and not by_name.positional
    for spec in ((X, Y), [X, Y]):
        by_position = open_source(spec).train
        assert names(by_position) == ["0", "1"] and by_position.positional
        assert by_position.rows(np.array([3]))["1"] == [3]


def test_several_sources_to_test_with():
    tests = {"clean": {"x": X, "y": Y}, "noisy": Arrays(x=X[:3], y=Y[:3]), "third.one": {"x": X, "y": Y}}
    sources = open_source({"train": {"x": X, "y": Y}, "test": tests})
    assert sources.test.num_rows == 11
    assert sources.tests == (("clean", 0, 4), ("noisy", 4, 7), ("third.one", 7, 11))
    assert list(sources.test.rows(np.array([3, 4, 7]))["y"]) == [3, 0, 0]
    (named,) = open_source({"train": {"x": X}, "test": {"clean": {"x": X}}}).tests
    assert named.prefix == "clean/"
    (alone,) = open_source({"train": {"x": X}, "test": {"x": X}}).tests
    assert alone == ("", 0, 4) and alone.prefix == ""
    (by_position,) = open_source({"train": (X, Y), "test": (X, Y)}).tests
    assert by_position.prefix == ""
    assert open_source({"train": {"x": X}}).tests == ()


@pytest.mark.parametrize(
    "tests, words",
    [
        ({"a/b": {"x": X, "y": Y}}, "a source named 'a/b'; its metrics are named after it"),
        ({"clean": {"x": X, "y": Y}, "noisy": {"x": X}}, "'train' has the columns .*, 'noisy' has .'x'."),
        ({"clean": {"x": X, "y": Y}, "noisy": {"x": X, "y": X}}, "source 1 has the columns"),
    ],
)
def test_sources_to_test_with_that_are_none(tests, words):
    with pytest.raises(DataError, match=words):
        open_source({"train": {"x": X, "y": Y}, "test": tests})


def test_train_and_test():
    sources = open_source({"train": {"x": X, "y": Y}, "test": Arrays(y=Y[:3], x=X[:3])})
    assert (len(sources.train), len(sources.test)) == (4, 3)
    assert open_source({"train": (X,)}).test is None


def test_a_source_of_ones_own():
    class Squares(Source):
        columns = (Column("x", (), "int64"),)
        num_rows = 10

        def rows(self, numbers):
            return {"x": numbers**2}

    source = open_source({"train": Squares()}).train
    assert sorted(source.shuffle(1).rows(0, 0, 10)) == list(range(10))
    assert not source.positional and len(source.signature) == 64


@pytest.mark.parametrize(
    "spec, words",
    [
        (None, "data\\(\\) is a NoneType. Allowed are"),
        ({}, "data\\(\\) is empty"),
        ((), "data\\(\\) is empty"),
        (X, "one ndarray; write a tuple"),
        ("x.h5", "a path, 'x.h5'"),
        ({1: X}, "keys that are no strings"),
        ({"test": (X,)}, "'train' must be there"),
        ({"train": (X,), "valid": (X,)}, "only 'test' is allowed"),
        ({"train": None}, "data\\(\\)\\['train'\\] is a NoneType"),
        ({"train": {"x": X}, "test": {"z": X}}, "'train' has the columns \\['x'\\], 'test' has \\['z'\\]"),
        ({"train": {"0": X}, "test": (X,)}, "both as dicts or both as tuples"),
        ({"x": X, "y": Y[:3]}, "'x' has 4, 'y' has 3"),
        (
            ((X, Y), (X, Y)),
            "is a tuple, 2 of whose 2 columns are sources, such as a tuple. Allowed are .*'test'",
        ),
        (
            (Arrays(x=X), Arrays(x=X)),
            "is a tuple, 2 of whose 2 columns .* such as Arrays of 4 records. Allowed",
        ),
        ([X, {"y": Y}], "is a list, 1 of whose 2 columns are sources, such as a dict. Allowed are"),
        ({"train": ({"x": X}, Y)}, r"data\(\)\['train'\] is a tuple, 1 of whose 2 columns"),
    ],
)
def test_what_data_may_not_return(spec, words):
    with pytest.raises(DataError, match=words):
        open_source(spec)


def test_the_suffix_of_a_path_tells_the_format(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    with h5py.File(tmp_path / "a.h5", "w") as first, h5py.File(tmp_path / "a.hdf5", "w") as second:
        first["x"] = second["x"] = X
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n4\n")
    (tmp_path / "parts").mkdir()
    pq.write_table(pa.table({"x": Y}), tmp_path / "parts" / "0.parquet")
    kinds = {
        "a.npz": NPZ,
        "a.h5": HDF5,
        "a.hdf5": HDF5,
        "*.csv": CSV,
        "parts/*.parquet": Parquet,
        "parts/*": Parquet,
    }
    for name, kind in kinds.items():
        source = open_path(str(tmp_path / name))
        assert isinstance(source, kind) and len(source) == 4


@pytest.mark.parametrize(
    "name, words", [("x.txt", "unknown suffix '.txt'"), ("x", "suffix"), ("*", "no file")]
)
def test_paths_of_no_known_format(tmp_path, name, words):
    with pytest.raises(DataError, match=words):
        open_path(str(tmp_path / name))


def test_importing_the_package_imports_no_file_format():
    program = "import elasticflow.data, sys; print({'h5py', 'pyarrow', 'torch'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
