"""A checkpoint that is written to a remote medium, and read back, beside the medium's own client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.figures import Figure, figure, median
from elasticflow import checkpoint
from elasticflow.step.layout import Array, Entry, Layout, Rule, Vector, spread
from elasticflow.storage import Storage

TENSORS = 16
ROUNDS = 3
STREAMS = (1, 4)


class Model:
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


class Peer(Protocol):
    """The medium's own client, with files of this machine's and with nothing done to the bytes."""

    def upload(self, folder: Path, streams: int) -> None:
        """All files of a folder, in the place of those before."""

    def download(self, streams: int) -> None:
        """All of them, to nowhere."""


class Site:
    """A storage for our side, and in a local folder the files that the other one sends."""

    def __init__(self, storage: Storage, peer: Peer, model: Model, streams: int, folder: Path) -> None:
        self.storage, self.peer, self.model, self.streams = storage, peer, model, streams
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
        self.peer.upload(self.local, self.streams)

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
        self.peer.download(self.streams)

    def figures(self, where: str, theirs: str, command: str, note: str) -> Iterator[Figure]:
        """Medians of both, in turns. where: the medium. theirs: the client's name."""
        num_bytes = sum(part.num_bytes for part in self.manifest.parts)
        save_s, upload_s = _beside(self.save, self.upload)
        yield figure(
            f"checkpoint to {where} / {theirs} upload, {self.streams} streams",
            num_bytes / save_s / 1e6, "MB/s", num_bytes / upload_s / 1e6, command,
            f"{num_bytes / 1e9:.2f} GB, {note}: {save_s:.2f} s, upload {upload_s:.2f} s",
        )  # fmt: skip
        restore_s, download_s = _beside(self.restore, self.download)
        yield figure(
            f"restore from {where} / {theirs} read, {self.streams} streams",
            num_bytes / restore_s / 1e6, "MB/s", num_bytes / download_s / 1e6, command,
            "hashed and compared; the reading beside it does nothing with the bytes",
        )  # fmt: skip


def _beside(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Medians of seconds, in turns; who comes first changes."""
    sides: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for turn in range(ROUNDS):
        for side in (ours, theirs) if turn % 2 else (theirs, ours):
            sides[side].append(_seconds(side))
    return median(sides[ours]), median(sides[theirs])
