"""HDFS: a checkpoint of 1 GB, written and read back, beside the hdfs package with as many streams."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hdfs
import numpy as np

from benchmarks.figures import Figure, figure, median
from elasticflow import checkpoint
from elasticflow.step.layout import Array, Entry, Layout, Rule, Vector, spread
from elasticflow.storage import RemoteStorage
from elasticflow.storage.hdfs import HdfsPath
from tests.clusters.hadoop import HadoopCluster

GIGABYTE = 1 << 30
TENSORS = 16
PIECE = 4 << 20
ROUNDS = 3
STREAMS = (1, 4)
COMMAND = "python -m benchmarks hdfs"


class _Model:
    """Noise in the shape of a model."""

    def __init__(self, num_bytes: int) -> None:
        self.layout = Layout(
            Entry(f"w{n}", (num_bytes // TENSORS // 4,), "float32", Rule.UPDATE) for n in range(TENSORS)
        )
        self.vector = Vector(self.layout)
        chance = np.random.default_rng(0)
        for tensor in self.vector.tensors(self.layout.entries):
            tensor[...] = chance.standard_normal(len(tensor), np.float32)

    def chunk(self, number: int) -> dict[str, Array]:
        return {"value": self.vector.chunk(self.layout.chunks[number])}


def _seconds(act: Callable[[], object]) -> float:
    since_s = time.perf_counter()
    act()
    return time.perf_counter() - since_s


class _Site:
    """A folder in HDFS for each side, and in the local one the files that the hdfs package sends."""

    def __init__(self, cluster: HadoopCluster, model: _Model, streams: int, folder: Path) -> None:
        self.model, self.streams = model, streams
        self.root = HdfsPath(f"{cluster.hdfs_url}/user/{cluster.user}/benchmark-{streams}")
        (self.root / "ours").mkdir(parents=True)
        self.storage = RemoteStorage(str(self.root / "ours"))
        self.peer: Any = hdfs.InsecureClient(cluster.namenode_url, user=cluster.user)
        self.theirs = f"/user/{cluster.user}/benchmark-{streams}/theirs"
        self.shares = [share for share in spread(model.layout, streams)]
        self.local = folder / f"streams-{streams}"
        self.local.mkdir()
        for number, share in enumerate(self.shares):
            with open(self.local / str(number), "wb") as file:
                for chunk in share:
                    for array in model.chunk(chunk).values():
                        file.write(array.data)
        self.manifest = self.save()

    def save(self) -> checkpoint.Manifest:
        """As the servers do, each in a thread, and then the master."""
        self.storage.remove("checkpoints")
        with ThreadPoolExecutor(self.streams) as servers:
            parts = tuple(servers.map(self._save_part, range(self.streams)))
        manifest = checkpoint.Manifest(
            program="benchmark", tick=0, step=0, epoch=0, optimizer={}, work={}, fingerprint={},
            signature=self.model.layout.signature, entries=self.model.layout.entries, parts=parts,
        )  # fmt: skip
        checkpoint.commit(self.storage, manifest)
        return manifest

    def _save_part(self, server: int) -> checkpoint.Part:
        layout, name = self.model.layout, checkpoint.part_name(1, f"server-{server}")
        chunks = ((layout.chunks[number], self.model.chunk(number)) for number in self.shares[server])
        return checkpoint.write_part(self.storage, checkpoint.folder_of(0), name, layout, chunks)

    def upload(self) -> None:
        """From the page cache."""
        self.peer.delete(self.theirs, recursive=True)
        self.peer.upload(self.theirs, str(self.local), n_threads=self.streams)

    def restore(self) -> None:
        """Every array of every part, hashed and compared; each part in a thread."""
        with ThreadPoolExecutor(self.streams) as servers:
            list(servers.map(self._restore_part, self.manifest.parts))

    def _restore_part(self, part: checkpoint.Part) -> None:
        with checkpoint.Reader(self.storage, self.manifest) as reader:
            for number in part.chunks:
                reader.read_chunk(number)

    def download(self) -> None:
        """The same bytes, and nothing done with them."""
        with ThreadPoolExecutor(self.streams) as readers:
            list(readers.map(self._read, self.peer.list(self.theirs)))

    def _read(self, name: str) -> None:
        with self.peer.read(f"{self.theirs}/{name}", chunk_size=PIECE) as pieces:
            for _ in pieces:
                pass


def _beside(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Medians of seconds, in turns; who comes first changes."""
    sides: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for turn in range(ROUNDS):
        for side in (ours, theirs) if turn % 2 else (theirs, ours):
            sides[side].append(_seconds(side))
    return median(sides[ours]), median(sides[theirs])


def run(num_bytes: int = GIGABYTE) -> Iterator[Figure]:
    """Medians of three, in turns. Needs ``num_bytes`` of memory, and eight times that on disk (TMPDIR)."""
    megabytes = num_bytes / 1e6
    model = _Model(num_bytes)
    before = {name: os.environ.get(name) for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME")}
    with tempfile.TemporaryDirectory(prefix="elasticflow-") as folder, HadoopCluster(yarn=False) as cluster:
        os.environ.update({name: cluster.environment[name] for name in before})
        try:
            for streams in STREAMS:
                site = _Site(cluster, model, streams, Path(folder))
                save_s, upload_s = _beside(site.save, site.upload)
                yield figure(
                    f"checkpoint to HDFS / hdfs upload, {streams} streams",
                    megabytes / save_s, "MB/s", megabytes / upload_s, COMMAND,
                    f"{megabytes / 1000:.2f} GB, replication 2: {save_s:.2f} s, upload {upload_s:.2f} s",
                )  # fmt: skip
                restore_s, download_s = _beside(site.restore, site.download)
                yield figure(
                    f"restore from HDFS / hdfs read, {streams} streams",
                    megabytes / restore_s, "MB/s", megabytes / download_s, COMMAND,
                    "hashed and compared; the reading beside it does nothing with the bytes",
                )  # fmt: skip
                site.root.remove_tree()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
