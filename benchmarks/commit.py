"""What a checkpoint of 1 GB of parameters with Adam costs: the cut, the write, the restore."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, figure, median
from elasticflow import checkpoint
from elasticflow.api import Adam
from elasticflow.step.layout import Array, Entry, Layout, Rule, spread
from elasticflow.storage import DirectoryStorage
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Store, Sum

GIGABYTE = 1 << 30
PIECE = 4 << 20
ROUNDS = 3
COMMAND = "python -m benchmarks commit"


class _Held:
    """The store of one server that holds a whole model, and a gradient for it."""

    def __init__(self, num_bytes: int) -> None:
        tensors = 16
        shape = (num_bytes // tensors // 4,)
        self.layout = Layout(Entry(f"w{n}", shape, "float32", Rule.UPDATE) for n in range(tensors))
        self.parcels = parcels_of(self.layout, spread(self.layout, 1)[0])
        self.store = Store(self.parcels, kernel_for(Adam(lr=0.001)))
        self.version = 0
        chance = np.random.default_rng(0)
        random = chance.standard_normal(PIECE // 4, np.float32)  # one piece of noise serves for all
        self.gradients = {
            parcel.number: Sum([random[: len(span)] for span in parcel.spans], parcel.spans)
            for parcel in self.parcels
        }
        for parcel in self.parcels:
            self.store.initialise(0, parcel, [random[: len(span)] for span in parcel.state])

    def update_s(self) -> float:
        """Seconds of one update of everything."""
        since_s = time.perf_counter()
        for parcel in self.parcels:
            total = self.gradients[parcel.number]
            self.store.apply(self.version, parcel, total, lr=0.001, update=self.version + 1, scale=1.0)
        self.version += 1
        self.store.retire(self.version)
        return time.perf_counter() - since_s


def _plain_write(path: Path, arrays: list[Array]) -> None:
    """As dd does it: 4 MB at a time, and one fsync at the end."""
    with open(path, "wb", buffering=0) as file:
        for array in arrays:
            data = memoryview(array).cast("B")
            for start in range(0, len(data), PIECE):
                file.write(data[start : start + PIECE])
        os.fsync(file.fileno())


def _plain_read(path: Path) -> None:
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _seconds(act: Callable[[], object]) -> float:
    since_s = time.perf_counter()
    act()
    return time.perf_counter() - since_s


def _copies_s(held: _Held) -> list[float]:
    """Seconds of a memcpy of what a checkpoint holds, into memory that is there."""
    snapshot = held.store.snapshot(held.version)
    arrays = [array for _, named in snapshot.chunks() for array in named.values()]
    into = [np.ones_like(array) for array in arrays]

    def copy() -> None:
        for target, array in zip(into, arrays, strict=True):
            np.copyto(target, array)

    copies = [_seconds(copy) for _ in range(ROUNDS)]
    snapshot.release()
    return copies


def _cut(held: _Held) -> Iterator[Figure]:
    """What the cut holds up, the next update with it, beside a memcpy of the same bytes."""
    plain = [held.update_s() for _ in range(2 + ROUNDS)][2:]
    cuts, after = [], []
    copies = _copies_s(held)
    for _ in range(1 + ROUNDS):
        since_s = time.perf_counter()
        snapshot = held.store.snapshot(held.version)
        cuts.append(time.perf_counter() - since_s)
        after.append(held.update_s())
        snapshot.release()
        held.update_s()
    copy_s, cut_s = median(copies), median(cuts)
    first_s, more_s = after[0] - median(plain), median(after[1:]) - median(plain)
    yield figure("the cut / memcpy of the same bytes", 1000 * cut_s, "ms", 1000 * copy_s, COMMAND)
    yield figure(
        "the cut, and what the next update takes longer / memcpy",
        1000 * (cut_s + more_s), "ms", 1000 * copy_s, COMMAND,
        f"the first one, which finds no memory yet: {1000 * (cut_s + first_s):.0f} ms",
    )  # fmt: skip
    yield figure(
        "update right after a cut / other updates",
        1000 * median(after[1:]),
        "ms",
        1000 * median(plain),
        COMMAND,
    )


def _store(held: _Held, folder: Path) -> Iterator[Figure]:
    """Writing and reading beside plain writing and reading of the same bytes, on the same disk."""
    storage = DirectoryStorage(folder)
    snapshot = held.store.snapshot(held.version)
    chunks = list(snapshot.chunks())
    arrays = [array for _, named in chunks for array in named.values()]
    megabytes = sum(array.nbytes for array in arrays) / 1e6
    path = checkpoint.folder_of(0), checkpoint.part_name(1, "server-0")

    def write() -> None:
        checkpoint.write_part(storage, *path, held.layout, chunks)

    plain, ours, reading, restoring = [], [], [], []
    for _ in range(ROUNDS):
        plain.append(_seconds(lambda: _plain_write(folder / "plain", arrays)))
        (folder / "plain").unlink()
        storage.remove(path[0])
        os.sync()
        ours.append(_seconds(write))
        os.sync()
    storage.remove(path[0])
    part = checkpoint.write_part(storage, *path, held.layout, chunks)
    manifest = checkpoint.Manifest(
        program="benchmark", tick=held.version, step=0, epoch=0, optimizer={}, work={}, fingerprint={},
        signature=held.layout.signature, entries=held.layout.entries, parts=(part,),
    )  # fmt: skip
    checkpoint.commit(storage, manifest)
    for _ in range(ROUNDS):
        reading.append(_seconds(lambda: _plain_read(folder / path[0] / path[1])))
        with checkpoint.Reader(storage, manifest) as reader:
            restore = partial(held.store.restore, held.version + 1, reader.read_chunk, reader.read_rows)
            restoring.append(_seconds(restore))
        held.store.retire(held.version + 1)
        held.version += 1
    snapshot.release()
    note = f"{megabytes / 1000:.2f} GB: {median(ours):.2f} s, plain writing with fsync {median(plain):.2f} s"
    yield figure(
        "background write / plain writing",
        megabytes / median(ours),
        "MB/s",
        megabytes / median(plain),
        COMMAND,
        note,
    )
    yield figure(
        "restore / plain reading", median(restoring), "s", median(reading), COMMAND, "from the page cache"
    )


def run(num_bytes: int = GIGABYTE) -> Iterator[Figure]:
    """Medians of three, in turns. Needs seven times ``num_bytes`` of memory; TMPDIR is what is written to."""
    held = _Held(num_bytes)
    yield from _cut(held)
    with tempfile.TemporaryDirectory(prefix="elasticflow-") as folder:
        yield from _store(held, Path(folder))
