"""Sources on a real HDFS, beside the same files on a local disk; daemons die while they are read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from elasticflow.data import HDF5, NPZ, Parquet, files, open_path
from elasticflow.data.files import matching_files
from elasticflow.errors import DataError, UnreadableError
from elasticflow.storage.webhdfs import WebHdfs

from .remote import NUM_ROWS, write_files
from .test_remote_files import PATTERNS, assert_same_pass

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(300)]

PROGRAM = """
import os, torch
import elasticflow as ef

def model():
    return {"net": torch.nn.Linear(6, 7), "optimizer": ef.Adam(lr=0.01)}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def data():
    where = os.environ["WHERE"]
    x = [f"f{number}" for number in range(6)]
    train = ef.data.Parquet(f"{where}/parts/*/*.parquet", x=x, y="y")
    return {"train": train, "test": ef.data.HDF5(f"{where}/chunked.h5", x="x", y="y")}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    write_files(path)
    return path


@pytest.fixture
def cluster(hdfs_cluster, monkeypatch):
    for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
        monkeypatch.setenv(name, hdfs_cluster.environment[name])
    yield hdfs_cluster
    hdfs_cluster.reset()


@pytest.fixture
def url(cluster, folder):
    """Of the folder's copy in HDFS."""
    there = f"{cluster.hdfs_url}/user/{cluster.user}/sources"
    client, root = WebHdfs.of(there)
    for path in folder.rglob("*"):
        if path.is_file() and client.find(f"{root}/{path.relative_to(folder)}") is None:
            upload(path, f"{there}/{path.relative_to(folder)}")
    return there


def upload(path: Path, url: str) -> None:
    client, target = WebHdfs.of(url)
    client.mkdirs(os.path.dirname(target))
    client.write(target, path.read_bytes(), overwrite=True)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_records_in_the_same_order(url, folder, pattern):
    assert_same_pass(open_path(f"{folder}/{pattern}"), open_path(f"{url}/{pattern}"))


def test_all_kinds_of_urls(cluster, url, folder):
    path = url.removeprefix(cluster.hdfs_url)
    local = NPZ(folder / "plain.npz")
    for there in (cluster.webhdfs_url + path, f"hdfs://{path}", url):
        assert_same_pass(local, NPZ(f"{there}/plain.npz"), batch=500)


def test_patterns(url, folder):
    for pattern in ("parts/**", "**/*.csv", "parts/day=[02]/*", "*"):
        local = [
            str(file).removeprefix(str(folder)) for file in matching_files("data", f"{folder}/{pattern}")
        ]
        assert [str(file).removeprefix(url) for file in matching_files("data", f"{url}/{pattern}")] == local


def test_files_that_are_not_there_or_not_for_this_user(cluster, url, monkeypatch):
    with pytest.raises(DataError, match=f"there is no file {url}/none.h5"):
        HDF5(f"{url}/none.h5")
    with pytest.raises(DataError, match=f"{url}/none/.*: there is no file"):
        Parquet(f"{url}/none/*.parquet")
    client, path = WebHdfs.of(f"{url}/plain.h5")
    client.set_permission(path, 0o000)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(DataError, match=f"{url}/plain.h5.*stranger") as raised:
        HDF5(f"{url}/plain.h5")
    assert type(raised.value) is DataError
    client.set_permission(path, 0o644)
    assert HDF5(f"{url}/plain.h5").num_rows == NUM_ROWS


def test_a_namenode_that_is_not_there(cluster, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 0.2)
    with pytest.raises(UnreadableError, match="webhdfs://localhost:1/x.csv cannot be read: .*localhost:1"):
        open_path("webhdfs://localhost:1/x.csv")


def test_a_file_that_is_replaced_or_removed(cluster, url, tmp_path):
    for name, rows in ("first.h5", 9000), ("second.h5", 5000), ("third.h5", 9000):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.arange(rows)
    there = f"{url}-changing/x.h5"
    for change, text in (
        ("second.h5", "has changed since it was opened: .* bytes instead of"),
        ("third.h5", "has changed since it was opened: .* bytes instead of"),  # of as many
        (None, "is no longer there"),
    ):
        upload(tmp_path / "first.h5", there)
        source = HDF5(there, block_bytes=8000)
        client, path = WebHdfs.of(there)
        if change:
            upload(tmp_path / change, there)
        else:
            client.remove(path)
        with pytest.raises(UnreadableError, match=f"{there} {text}"):
            source.rows(np.array([8500]))


def pass_with(url, folder, middle):
    """Whether a pass through small blocks, with ``middle`` called half-way, gives the same as locally."""
    local = Parquet(f"{folder}/parts/*/*.parquet")
    source = Parquet(f"{url}/parts/*/*.parquet", cache_bytes=40_000)
    order = source.shuffle(1)
    for start in range(0, NUM_ROWS, 50):
        if start == NUM_ROWS // 2:
            middle()
        numbers = order.rows(0, start, start + 50)
        found, expected = source.rows(numbers), local.rows(numbers)
        source.prefetch(order.next_window(0, start))
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert source.blocks_read > NUM_ROWS // 90


@pytest.mark.parametrize("datanode", ["datanode-0", "datanode-1"])
def test_a_datanode_is_killed_during_a_pass(cluster, url, folder, datanode):
    pass_with(url, folder, lambda: cluster.kill(datanode))


def test_the_namenode_restarts_during_a_pass(cluster, url, folder, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_S", 200.0)  # a busy machine takes minutes to start one
    pass_with(url, folder, lambda: cluster.restart("namenode"))


def digest(tmp_path, *options, **variables):
    command = [sys.executable, "-m", "elasticflow.cli", "train", str(tmp_path / "program.py"), *options]
    command += ["--run-dir", str(tmp_path / f"run-{len(list(tmp_path.iterdir()))}")]
    command += ["--workers", "2", "--epochs", "3", "--batch-size", "64", "--slices", "8"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^digest: ([0-9a-f]{64})$", done.stdout + done.stderr, re.MULTILINE)
    assert found
    return found[1]


def test_a_run_on_hdfs_has_the_digest_of_a_local_one(url, folder, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert digest(tmp_path, WHERE=url) == digest(tmp_path, WHERE=str(folder))
    remote, local = (digest(tmp_path, "--data", f"{where}/plain.npz") for where in (url, folder))
    assert remote == local


def test_tables_of_a_lake(cluster, tmp_path):
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    from elasticflow.data import Delta, Iceberg

    from .lakes import content, opened, write_delta, write_iceberg

    there = f"{cluster.hdfs_url}/user/{cluster.user}/lakes"
    client, root = WebHdfs.of(there)
    client.remove(root)
    write_delta(tmp_path / "delta")
    metadata = write_iceberg(tmp_path / "iceberg", f"{there}/iceberg")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            upload(path, f"{there}/{path.relative_to(tmp_path)}")
    local = write_iceberg(tmp_path / "here", str(tmp_path / "here"))
    recent = [("date", ">=", "2026-11-26")]
    for more in {}, {"filters": recent}:
        found = content(opened(Delta, f"{there}/delta", **more))
        assert found == content(opened(Delta, tmp_path / "delta", **more))
        found = content(opened(Iceberg, metadata, **more))
        assert found == content(opened(Iceberg, local, **more))
    with pytest.raises(DataError, match="is a table of Delta"):
        Parquet(f"{there}/delta")
