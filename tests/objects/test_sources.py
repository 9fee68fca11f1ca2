"""Records in an object store, beside the same files on a local disk."""

import gc
import threading

import h5py
import numpy as np
import pytest

from elasticflow.data import HDF5, NPZ, Parquet, open_path
from elasticflow.data.files import matching_files
from elasticflow.errors import DataError, UnreadableError
from elasticflow.storage.objects import Objects
from tests.data.remote import NUM_ROWS, write_files
from tests.data.test_remote_files import PATTERNS, assert_same_pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    write_files(path)
    return path


@pytest.fixture
def files(fs, folder, url):
    """URL of the folder's copy."""
    fs.put(f"{folder}/", f"{url}/files/", recursive=True)
    return f"{url}/files"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_records_in_the_same_order(files, folder, pattern):
    assert_same_pass(open_path(f"{folder}/{pattern}"), open_path(f"{files}/{pattern}"))


def test_the_same_from_whatever_else_fsspec_knows(folder):
    import fsspec

    fsspec.filesystem("memory").put(f"{folder}/", "/files/", recursive=True)
    for pattern in ("parts/*/*.parquet", "plain.npz"):
        assert_same_pass(open_path(f"{folder}/{pattern}"), open_path(f"memory://files/{pattern}"))
        assert_same_pass(open_path(f"{folder}/{pattern}"), open_path(f"file://{folder}/{pattern}"))


def test_patterns(files, folder):
    for pattern in ("parts/**", "**/*.csv", "parts/day=[02]/*", "*"):
        local = [
            str(file).removeprefix(str(folder)) for file in matching_files("data", f"{folder}/{pattern}")
        ]
        found = [str(file).removeprefix(files) for file in matching_files("data", f"{files}/{pattern}")]
        assert found == local


def test_a_folder_of_parquet_files(fs, files, folder, url):
    for path in folder.glob("parts/*/*.parquet"):
        fs.put_file(str(path), f"{url}/table/{path.relative_to(folder)}")
    fs.pipe_file(f"{url}/table/_SUCCESS", b"")
    fs.pipe_file(f"{url}/table/", b"")  # as a console makes a folder
    assert_same_pass(Parquet(f"{folder}/parts/*/*.parquet"), open_path(f"{url}/table/"))


def test_files_that_are_not_there_or_not_for_this_user(s3, files):
    with pytest.raises(DataError, match=f"there is no file {files}/none.h5"):
        HDF5(f"{files}/none.h5")
    with pytest.raises(DataError, match=f"{files}/none/.*: there is no file"):
        Parquet(f"{files}/none/*.parquet")
    with pytest.raises(DataError, match="s3://no-such-bucket/x.npz"):
        NPZ("s3://no-such-bucket/x.npz")
    with pytest.raises(DataError, match="no file|directory"):
        NPZ(f"{files}/parts")
    s3.fail("deny", "GET", "plain.h5", times=1000)
    with pytest.raises(DataError, match=f"{files}/plain.h5") as raised:
        HDF5(f"{files}/plain.h5")
    assert type(raised.value) is DataError


def test_a_file_that_is_replaced_or_removed(fs, url, tmp_path):
    for name, rows in ("first.h5", 9000), ("second.h5", 5000), ("third.h5", 9000):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(rows) + ord(name[0])
    there = f"{url}/x.h5"
    for change, text in (
        ("second.h5", "has changed since it was opened: .* bytes instead of"),
        ("third.h5", "has changed since it was opened: .* bytes instead of"),  # of as many
        (None, "is no longer there"),
    ):
        fs.put_file(str(tmp_path / "first.h5"), there)
        source = HDF5(there, block_bytes=8000)
        if change:
            fs.put_file(str(tmp_path / change), there)
        else:
            fs.rm(there)
        with pytest.raises(UnreadableError, match=f"{there} {text}"):
            source.rows(np.array([8500]))


def test_h5py_objects_that_die_in_the_thread_that_reads_from_the_store(files, monkeypatch):
    """A collection of garbage there would wait for h5py's lock, which whoever waits for the thread holds."""
    spaces = [h5py.h5s.create_simple((1,)) for _ in range(200)]
    asked, were_alive = Objects._ranges, len(spaces)

    def ranges(*asking):
        def die():
            ring = [spaces.pop()] if spaces else []
            ring.append(ring)
            del ring
            [[] for _ in range(3 * gc.get_threshold()[0])]  # enough for a collection

        thread = threading.Thread(target=die, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        return asked(*asking)

    monkeypatch.setattr(Objects, "_ranges", ranges)
    source = HDF5(f"{files}/plain.h5", block_bytes=800)
    assert len(source.rows(np.arange(NUM_ROWS))["x"]) == NUM_ROWS
    assert len(spaces) < were_alive and gc.isenabled()


@pytest.mark.parametrize("act", ["refuse", "lose", "cut"])
def test_a_pass_goes_on_while_the_store_falters(s3, files, folder, act):
    local = Parquet(f"{folder}/parts/*/*.parquet")
    source = Parquet(f"{files}/parts/*/*.parquet", cache_bytes=40_000)
    order = source.shuffle(1)
    for start in range(0, NUM_ROWS, 100):
        s3.fail(act, "GET", "part.parquet")
        numbers = order.rows(0, start, start + 100)
        found, expected = source.rows(numbers), local.rows(numbers)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert s3.heal() >= 5
