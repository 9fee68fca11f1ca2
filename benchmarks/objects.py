"""An object store: a checkpoint, written and read back, beside s3fs with as many objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
from pytest import MonkeyPatch

from benchmarks.figures import Figure
from benchmarks.remote import STREAMS, Model, Site
from elasticflow.storage import RemoteStorage
from tests.clusters.s3 import S3Server

NUM_BYTES = 1 << 28
"""The store of the tests has all in memory, and is written in Python."""
COMMAND = "python -m benchmarks objects"


class _S3fs:
    """s3fs, with its own pieces and as many of them at once as it likes."""

    def __init__(self, folder: str) -> None:
        self._store, self._folder = fsspec.filesystem("s3"), folder

    def upload(self, folder: Path, streams: int) -> None:
        self._store.put([str(path) for path in folder.iterdir()], f"{self._folder}/")

    def download(self, streams: int) -> None:
        self._store.cat(self._store.find(self._folder))


def run(num_bytes: int = NUM_BYTES) -> Iterator[Figure]:
    """Medians of three, in turns. The store takes two cores as well."""
    model = Model(num_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="elasticflow-") as folder,
        S3Server() as server,
        MonkeyPatch.context() as patch,
    ):
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        for streams in STREAMS:
            fsspec.filesystem("s3").pipe_file(f"bucket/{streams}/ours/.there.partial", b"")
            storage = RemoteStorage(f"s3://bucket/{streams}/ours")
            site = Site(storage, _S3fs(f"bucket/{streams}/theirs"), model, streams, Path(folder))
            yield from site.figures("S3", "s3fs", COMMAND, "moto's server on the same two cores")
            fsspec.filesystem("s3").rm(f"bucket/{streams}", recursive=True)
