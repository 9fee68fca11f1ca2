"""A folder of its own in HDFS for every test, and a client whose patience is short."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from elasticflow.storage import RemoteStorage
from elasticflow.storage.hdfs import HdfsPath
from tests.clusters.hadoop import HadoopCluster


@pytest.fixture
def cluster(hdfs_cluster: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[HadoopCluster]:
    """The cluster, which this process's environment names."""
    for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
        monkeypatch.setenv(name, hdfs_cluster.environment[name])
    yield hdfs_cluster


@pytest.fixture
def url(cluster: HadoopCluster) -> Iterator[str]:
    """Of a folder that is there."""
    folder = HdfsPath(f"{cluster.hdfs_url}/user/{cluster.user}/{secrets.token_hex(4)}", patience_s=60)
    folder.mkdir(parents=True)
    yield str(folder)
    folder.remove_tree()


@pytest.fixture
def broken(cluster: HadoopCluster, url: str) -> Iterator[HadoopCluster]:
    """The cluster, to be broken; it is well again before the test's folder is removed."""
    yield cluster
    cluster.reset()


@pytest.fixture
def storage(url: str) -> RemoteStorage:
    return RemoteStorage(url)


@pytest.fixture
def raw():
    """Names that are really in a folder."""
    return lambda storage, folder: sorted(
        path.name for path in (HdfsPath(storage.url) / folder if folder else HdfsPath(storage.url)).iterdir()
    )
