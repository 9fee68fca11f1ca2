"""Sources on URLs, beside the same sources on paths: a folder stands for HDFS."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticflow.data import CSV, HDF5, NPZ, Parquet, files, open_path
from elasticflow.data.blocks import REMOTE_AHEAD, BlockSource
from elasticflow.data.files import joined, matching_files
from elasticflow.errors import DataError, UnreadableError
from elasticflow.storage.webhdfs import WebHdfs
from elasticflow.worker.faults import blame

from .remote import NUM_ROWS, FolderAsHdfs, X, write_files

PATTERNS = (
    "parts/*/*.parquet",
    "parts/**/*.csv",
    "plain.h5",
    "chunked.h5",
    "plain.npz",
    "fortran.npz",
    "compressed.npz",
)
URL = "hdfs://cluster"


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path)
    return tmp_path


@pytest.fixture
def remote(folder, monkeypatch):
    fake = FolderAsHdfs(folder)
    monkeypatch.setattr(WebHdfs, "of", fake.of)
    monkeypatch.setattr(files, "PAGE_BYTES", 4096)
    monkeypatch.setattr(files, "HOLE_BYTES", 64)
    return fake


def assert_same_pass(local, source, batch=37):
    assert source.signature == local.signature and source.columns == local.columns
    orders = local.shuffle(3), source.shuffle(3)
    for epoch in range(2):
        for start in range(0, NUM_ROWS, batch):
            numbers, same = (order.rows(epoch, start, min(NUM_ROWS, start + batch)) for order in orders)
            assert np.array_equal(numbers, same)
            expected, found = local.rows(numbers), source.rows(numbers)
            source.prefetch(orders[1].next_window(epoch, start))
            assert list(found) == list(expected)
            for name, array in expected.items():
                assert found[name].dtype == array.dtype
                assert np.array_equal(found[name], array)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_url_gives_the_same_records_in_the_same_order(remote, folder, pattern):
    assert_same_pass(open_path(f"{folder}/{pattern}"), open_path(f"{URL}/{pattern}"))
    assert remote.reads


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        (Parquet, "parts/*/*.parquet", {"cache_bytes": 3000}),
        (CSV, "parts/*/*.csv", {"cache_bytes": 3000, "block_bytes": 2000}),
        (HDF5, "chunked.h5", {"cache_bytes": 9000, "block_bytes": 1}),
        (NPZ, "plain.npz", {"cache_bytes": 9000}),
    ],
)
def test_a_small_cache_changes_nothing(remote, folder, kind, name, options):
    local = dict(options) if kind is not NPZ else {}
    assert_same_pass(kind(f"{folder}/{name}", **local), kind(f"{URL}/{name}", **options))


def test_of_a_row_group_only_the_wanted_columns_are_read_and_at_once(remote, folder):
    source = Parquet(f"{URL}/parts/day=1/part.parquet", x=["f1", "f2"])
    remote.reads.clear()
    source.rows(np.array([100, 101]))
    ((_, _, size),) = remote.reads
    assert 2 * 90 * 4 <= size < 4 * 90 * 4
    source.rows(np.array([179, 90]))
    assert len(remote.reads) == 1


@pytest.mark.parametrize(
    "filters", [None, [("day", "=", 1)], [("y", "<", 3), ("day", ">", 0)], [("name", "=", "row 5")]]
)
def test_a_folder_of_a_url_is_that_of_a_path(remote, folder, filters):
    for day in range(3):
        part = folder / "table" / f"day={day}"
        part.mkdir(parents=True)
        shutil.copy(folder / "parts" / part.name / "part.parquet", part / "000000_0")
        (part / "_SUCCESS").touch()
    local, source = (Parquet(f"{where}/table", ["f1", "day"], filters=filters) for where in (folder, URL))
    expected, found = (each.rows(np.arange(len(each))) for each in (local, source))
    assert source.signature == local.signature and np.array_equal(source.block_starts, local.block_starts)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


@pytest.mark.parametrize("name", ["plain.h5", "chunked.h5"])
def test_of_an_hdf5_file_only_the_chunks_of_a_block_are_read(remote, name):
    source = HDF5(f"{URL}/{name}", x="x", block_bytes=100 * 24)
    source.rows(np.array([150]))
    remote.reads.clear()
    source.rows(np.array([950]))
    assert 0 < remote.bytes_read <= 2 * 100 * 24


def test_ranges_with_small_holes_are_joined(monkeypatch):
    monkeypatch.setattr(files, "HOLE_BYTES", 5)
    assert joined([(20, 30), (0, 10), (15, 18), (16, 17), (40, 41)]) == [(0, 10 + 20), (40, 41)]
    assert joined([]) == []


@pytest.mark.parametrize(
    "pattern", ["parts/*/*", "parts/**", "**/*.csv", "parts/day=[02]/*.csv", "p*/day=?/part.parquet", "*"]
)
def test_patterns_match_what_they_match_locally(remote, folder, pattern):
    (folder / "parts" / ".hidden.csv").touch()
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "part.csv").touch()
    local = [str(file).removeprefix(str(folder)) for file in matching_files("data", f"{folder}/{pattern}")]
    found = [str(file).removeprefix(URL) for file in matching_files("data", f"{URL}/{pattern}")]
    assert found == local and found


def test_a_file_whose_name_is_a_pattern(remote, folder):
    (folder / "odd[1].csv").write_text("a\n1\n")
    assert open_path(f"{URL}/odd[1].csv").num_rows == 1


def test_what_is_not_there_or_may_not_be_read(remote, folder):
    with pytest.raises(DataError, match=f"NPZ: there is no file {URL}/none.npz"):
        NPZ(f"{URL}/none.npz")
    with pytest.raises(DataError, match=f"CSV: no file matches {URL}/none/"):
        CSV(f"{URL}/none/*.csv")
    with pytest.raises(DataError, match=f"HDF5: {URL}/parts is a directory"):
        HDF5(f"{URL}/parts")
    with pytest.raises(DataError, match="Parquet: hdfs:///x.parquet: no default file system"):
        Parquet("hdfs:///x.parquet")
    remote.fail.append(PermissionError("Permission denied: user=me (nn)"))
    with pytest.raises(DataError, match=f"{URL}/plain.h5 may not be read: Permission denied: user=me"):
        HDF5(f"{URL}/plain.h5")
    remote.fail.append(ConnectionRefusedError("Connection refused (nn)"))
    with pytest.raises(UnreadableError, match=f"{URL}/plain.h5 cannot be read: Connection refused"):
        HDF5(f"{URL}/plain.h5")


def test_a_file_that_is_seen_and_may_not_be_read_is_an_error_of_the_data(remote, monkeypatch):
    def refused(path, offset, buffer):
        raise PermissionError("Permission denied: user=me (nn)")

    monkeypatch.setattr(remote, "read_into", refused)
    for name in ("plain.h5", "plain.npz", "parts/day=0/part.csv", "parts/day=0/part.parquet"):
        with pytest.raises(DataError, match=f"{URL}/{name}.*Permission denied: user=me") as raised:
            open_path(f"{URL}/{name}")
        assert type(raised.value) is DataError


def test_a_text_that_is_no_url_that_anybody_knows(remote):
    with pytest.raises(DataError, match=r"nonsense://bucket is a URL that cannot be read.*hdfs://.*s3://"):
        open_path("nonsense://bucket/x.csv")
    from pathlib import Path

    with pytest.raises(DataError, match="has lost a slash"):
        CSV(Path("hdfs://cluster/x.csv"))


@pytest.mark.parametrize(
    "name", ["plain.h5", "chunked.h5", "parts/day=0/part.csv", "parts/day=0/part.parquet"]
)
@pytest.mark.parametrize("change", ["shorter", "other", "gone"])
def test_a_file_that_changes_while_it_is_in_use(remote, folder, name, change):
    small = {"block_bytes": 2000} if "parquet" not in name else {}
    kind = {"h5": HDF5, "csv": CSV, "parquet": Parquet}[name.rpartition(".")[2]]
    source = kind(f"{URL}/{name}", **small)
    path = folder / name
    length = path.stat().st_size
    path.unlink()
    if change != "gone":
        path.write_bytes(b"?" * (length if change == "other" else 3000))
    text = "is no longer there" if change == "gone" else "has changed since it was opened"
    with pytest.raises(UnreadableError, match=f"{URL}/{name}.*{text}"):
        for number in range(100, source.num_rows, 50):
            source.rows(np.array([number]))


def test_arrays_of_an_npz_file_that_must_be_loaded_and_are_too_large(remote):
    for name in ("compressed", "fortran"):
        with pytest.raises(
            DataError, match=rf"{name}.npz: array 'x' can only be loaded .*: 24000 bytes, and"
        ):
            NPZ(f"{URL}/{name}.npz", cache_bytes=20_000)
    assert NPZ(f"{URL}/plain.npz", cache_bytes=1).rows(np.array([7]))["x"][0].tolist() == X[7].tolist()


class Slow(BlockSource):
    """Blocks of 10 rows of 8 bytes, read by threads."""

    def __init__(self, num_blocks, cache_bytes):
        self.read, self.failing = [], set()
        super().__init__("Slow", [10] * num_blocks, cache_bytes, ahead=REMOTE_AHEAD)

    def read_block(self, number):
        self.read.append(number)
        if number in self.failing:
            raise UnreadableError(f"block {number}")
        return {"x": np.arange(10) + 10 * number}

    def block_name(self, number):
        return f"block {number}"

    def settle(self):
        """Waits for the threads."""
        for future in self._ahead.under_way.values():
            future.exception()


def test_what_is_wanted_soon_is_read_before_it_is_asked_for():
    source = Slow(10, cache_bytes=640)
    source.prefetch(np.array([30, 40, 45]))
    source.settle()
    assert sorted(source.read) == [0, 3, 4]
    assert source.rows(np.array([41, 35]))["x"].tolist() == [41, 35]
    assert sorted(source.read) == [0, 3, 4] and source.blocks_read == 3


def test_the_cache_and_what_is_read_ahead_keep_to_the_bound_together():
    source = Slow(20, cache_bytes=320)  # four blocks
    source.rows(np.arange(0, 40))
    source.prefetch(np.arange(40, 200, 10))
    assert len(source._ahead.under_way) == 2
    assert source._cache.num_bytes + 2 * 80 <= 320
    source.settle()
    source.prefetch(np.arange(60, 200, 10))
    assert source._cache.num_bytes + len(source._ahead.under_way) * 80 <= 320


def test_what_fails_ahead_fails_only_when_it_is_asked_for():
    source = Slow(10, cache_bytes=640)
    source.failing = {5}
    source.prefetch(np.array([50]))
    source.settle()
    source.prefetch(np.array([60]))
    with pytest.raises(UnreadableError, match="block 5"):
        source.rows(np.array([50]))
    source.failing.clear()
    assert source.rows(np.array([50]))["x"].tolist() == [50]


def test_a_block_larger_than_half_the_cache_is_not_read_ahead():
    source = Slow(10, cache_bytes=100)
    source.prefetch(np.array([50]))
    assert not source._ahead.under_way
    assert source.rows(np.arange(100))["x"].tolist() == list(range(100))


def test_after_a_fork_the_child_reads_with_threads_of_its_own(remote):
    source = Parquet(f"{URL}/parts/*/*.parquet", cache_bytes=20_000)
    source.rows(np.arange(0, NUM_ROWS, 7))
    source.prefetch(np.arange(0, NUM_ROWS, 90))
    pid = os.fork()
    if not pid:
        source.prefetch(np.arange(0, NUM_ROWS, 90))
        same = source.rows(np.arange(NUM_ROWS))["f1"].tolist() == X[:, 1].tolist()
        os._exit(0 if same else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert source.rows(np.arange(NUM_ROWS))["f1"].tolist() == X[:, 1].tolist()


def test_no_record_is_blamed_for_a_medium_that_does_not_answer():
    def of_rows(kind, rows):
        raise UnreadableError("gone")

    batches, replica = SimpleNamespace(of_rows=of_rows), SimpleNamespace(compute=None)
    with pytest.raises(UnreadableError):
        blame(ValueError(), "p.py", replica, batches, np.arange(3), None)


def test_local_files_need_nothing_of_hdfs(folder):
    code = (
        "import sys; from elasticflow.data import open_path; open_path(sys.argv[1]); open_path(sys.argv[2]); "
        "print([name for name in ('requests', 'hdfs', 'elasticflow.storage.webhdfs') if name in sys.modules])"
    )
    paths = [f"{folder}/plain.h5", f"{folder}/parts/*/*.parquet"]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_empty_file_of_a_url(remote, folder):
    (folder / "empty.csv").touch()
    pq.write_table(pa.table({"a": [1]}).slice(0, 0), folder / "none.parquet")
    (folder / "empty.parquet").touch()
    for name, text in {
        "empty.csv": "first line is empty",
        "none.parquet": "0 records",
        "empty.parquet": "whole",
    }.items():
        with pytest.raises(DataError, match=text):
            open_path(f"{URL}/{name}")
