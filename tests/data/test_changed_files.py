"""Files that are other ones since they were opened, though they have the same size and time: as archives are
unpacked whose files all bear one time, or as a program leaves them that sets it back."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticflow.data import CSV, HDF5, NPZ, Arrays, Parquet, Transform
from elasticflow.errors import UnreadableError

ROWS = 300
SAID = "has changed: it has as many bytes as before, but others"


def columns(value):
    return {"a": np.full(ROWS, value), "y": np.arange(ROWS, dtype=np.float64)}


def write_csv(path, value):
    path.write_text("a,y\n" + "".join(f"{a},{y}\n" for a, y in zip(*columns(value).values(), strict=True)))


def write_hdf5(path, value):
    with h5py.File(path, "w", track_order=True) as file:
        for name, array in columns(value).items():
            file.create_dataset(name, data=array)


def write_npz(path, value):
    np.savez(path, **columns(value))


def write_parquet(path, value):
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table(columns(value)), path, row_group_size=20, **plain)


KINDS = {
    "csv": (write_csv, lambda path: CSV(path, cache_bytes=1, block_bytes=200)),
    "h5": (write_hdf5, lambda path: HDF5(path, cache_bytes=1, block_bytes=320)),
    "npz": (write_npz, NPZ),
    "parquet": (write_parquet, lambda path: Parquet(str(path), cache_bytes=1)),
}


@pytest.fixture(params=list(KINDS))
def opened(request, tmp_path):
    """A source that has read some, the path by which it was opened, and other records."""
    write, open_it = KINDS[request.param]
    first, second, path = (tmp_path / f"{name}.{request.param}" for name in ("first", "second", "link"))
    write(first, 1.5)
    write(second, 2.5)
    assert first.stat().st_size == second.stat().st_size
    for each in (first, second):
        os.utime(each, (10**9, 10**9))
    path.symlink_to(first.name)
    source = open_it(path)
    assert source.rows(np.array([0]))["a"] == [1.5]
    return source, path, second


def last(source):
    return source.rows(np.array([ROWS - 1]))["a"]


def test_a_link_that_leads_elsewhere(opened):
    source, path, other = opened
    path.with_name("next").symlink_to(other.name)
    path.with_name("next").replace(path)
    if isinstance(source, NPZ):  # it has the first one mapped
        assert last(source) == [1.5]
        return
    with pytest.raises(UnreadableError, match=SAID):
        last(source)


def test_a_file_that_is_written_to_and_whose_time_is_set_back(opened):
    source, path, other = opened
    with open(path, "r+b") as file:
        file.write(other.read_bytes())
    os.utime(path, (10**9, 10**9))
    with pytest.raises(UnreadableError, match=SAID):
        last(source)


def test_a_file_that_has_other_rights_or_is_copied_to_its_place_is_the_same(opened):
    source, path, other = opened
    path.chmod(0o600)
    os.link(path.resolve(), path.with_name("another name"))
    assert last(source) == [1.5]
    shutil.copy2(path, other)
    other.replace(path.resolve())
    assert last(source) == [1.5]


def test_a_file_that_may_be_read_no_more_is_named(opened, monkeypatch):
    source, path, _ = opened

    def refuse(name, *arguments, **options):
        if Path(name) == path:
            raise PermissionError(13, "Permission denied", name)
        return original(name, *arguments, **options)

    original = os.stat
    monkeypatch.setattr(os, "stat", refuse)
    if isinstance(source, NPZ):  # which has it mapped
        assert last(source) == [1.5]
    else:
        with pytest.raises(UnreadableError, match=rf"{path} can be read no more \(Permission denied\)"):
            last(source)


def test_an_array_that_is_mapped_from_a_file_that_is_written_to(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(ROWS))
    source = Transform(Arrays(a=np.load(path, mmap_mode="r")[10:]), lambda record: record)
    assert last_of(source) == [0]
    with open(path, "r+b") as file:
        np.save(file, np.ones(ROWS))
    with pytest.raises(UnreadableError, match=f"{path} has changed"):
        last_of(source)


def test_an_array_whose_file_is_gone_is_as_it_was(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(ROWS))
    array = np.load(path, mmap_mode="r")
    path.unlink()
    assert last_of(Arrays(a=array)) == [0]


def last_of(source):
    return source.rows(np.array([source.num_rows - 1]))["a"]
