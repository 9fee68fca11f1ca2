"""HDFS: a checkpoint of 1 GB, written and read back, beside the hdfs package with as many streams."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hdfs
from pytest import MonkeyPatch

from benchmarks.figures import Figure
from benchmarks.remote import STREAMS, Model, Site
from elasticflow.storage import RemoteStorage
from elasticflow.storage.hdfs import HdfsPath
from tests.clusters.hadoop import HadoopCluster

GIGABYTE = 1 << 30
PIECE = 4 << 20
COMMAND = "python -m benchmarks hdfs"


class _Package:
    """The hdfs package."""

    def __init__(self, cluster: HadoopCluster, folder: str) -> None:
        self._client: Any = hdfs.InsecureClient(cluster.namenode_url, user=cluster.user)
        self._folder = folder

    def upload(self, folder: Path, streams: int) -> None:
        self._client.delete(self._folder, recursive=True)
        self._client.upload(self._folder, str(folder), n_threads=streams)

    def download(self, streams: int) -> None:
        with ThreadPoolExecutor(streams) as readers:
            list(readers.map(self._read, self._client.list(self._folder)))

    def _read(self, name: str) -> None:
        with self._client.read(f"{self._folder}/{name}", chunk_size=PIECE) as pieces:
            for _ in pieces:
                pass


def run(num_bytes: int = GIGABYTE) -> Iterator[Figure]:
    """Medians of three, in turns. Needs ``num_bytes`` of memory, and eight times that on disk (TMPDIR)."""
    model = Model(num_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="elasticflow-") as folder,
        HadoopCluster(yarn=False) as cluster,
        MonkeyPatch.context() as patch,
    ):
        for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
            patch.setenv(name, cluster.environment[name])
        for streams in STREAMS:
            path = f"/user/{cluster.user}/benchmark-{streams}"
            root = HdfsPath(f"{cluster.hdfs_url}{path}")
            (root / "ours").mkdir(parents=True)
            package = _Package(cluster, f"{path}/theirs")
            site = Site(RemoteStorage(str(root / "ours")), package, model, streams, Path(folder))
            yield from site.figures("HDFS", "hdfs", COMMAND, "replication 2")
            root.remove_tree()
