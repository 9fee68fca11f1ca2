"""Row files of checkpoints that are under way at once: each can be committed, whatever was pruned before."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow.api import Adagrad
from elasticflow.checkpoint import (
    Manifest,
    Part,
    Reader,
    chain_of,
    commit,
    digest,
    folder_of,
    load_manifest,
    prune,
)
from elasticflow.embedding import TableSpec, Uniform
from elasticflow.step.layout import Entry, Layout, Rule
from elasticflow.step.rows import Rows, keys_of
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.messages import Troubled, Written
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.parts import Parts
from elasticflow_ps.row_files import changes
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.tables import tables_of

DIM, OPTIMIZER = 4, Adagrad(lr=0.1)
LAYOUT = Layout(
    [
        Entry("w", (8,), "float32", Rule.UPDATE),
        Entry("t", (0, DIM), "float32", Rule.ROWS),
        Entry("report", (1,), "float64", Rule.REPORT),
    ]
)
SPEC = TableSpec(rows=None, dim=DIM, initializer=Uniform(), optimizer=None, min_count=1, evict_after_steps=0)
EVERYBODY = np.arange(400)


class SlowStorage(DirectoryStorage):
    """Files of row files come into being while ``open`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        if name.startswith("rows/"):
            assert self.gate.wait(30)
        with super().create(name) as file:
            yield file


class Server:
    """Of a row of one, with a table; and its master, which keeps one checkpoint."""

    def __init__(self, path: Path, alone: bool = True) -> None:
        self.storage = SlowStorage(path)
        self.parcels = parcels_of(LAYOUT, range(len(LAYOUT.chunks)))
        self.store = self.new_store()
        for parcel in self.parcels:
            self.store.initialise(0, parcel, [np.zeros(len(span), span.dtype) for span in parcel.state])
        self.said: list[Written | Troubled] = []
        self.parts = Parts("server-0", self.storage, 0.0, self.said.append, alone=alone)  # type: ignore[arg-type]
        self.parts.enter(1)
        self.step = 0

    def load(self, step: int, generation: int) -> None:
        """As a server of another generation that goes on from a commit."""
        manifest, self.store = load_manifest(self.storage, step), self.new_store()
        with Reader(self.storage, manifest) as reader:
            self.store.restore(step, reader.read_chunk, reader.read_rows)
        self.store.chain = chain_of(manifest, range(len(LAYOUT.chunks)))
        self.parts.enter(generation)
        self.said.clear()
        self.step = step

    def new_store(self) -> Store:
        tables = tables_of(LAYOUT, [SPEC], OPTIMIZER, self.parcels, 7)
        return Store(self.parcels, kernel_for(OPTIMIZER), tables=tables)

    def train(self, ids: Any = EVERYBODY, steps: int = 1) -> None:
        for _ in range(steps):
            keys = np.sort(keys_of(np.array(ids)))
            for parcel in self.parcels:
                root: Any = Rows(keys, np.full((len(keys), DIM), 1 + self.step, np.float32))
                if parcel.table is None:
                    spans = parcel.spans
                    root = Sum([np.ones(len(s), s.dtype) for s in spans], spans)
                self.store.apply(self.step, parcel, root, lr=0.1, update=self.step + 1, scale=1.0)
            self.store.retire(self.step)
            self.step += 1

    def cut(self) -> int:
        snapshot, rows = self.store.snapshot(self.step), changes(self.store, self.step)
        self.parts.write(LAYOUT, folder_of(self.step), snapshot, rows, last=False, copy_s=0.0)
        return self.step

    def written(self, step: int) -> Written:
        while not (found := [each for each in self.said if isinstance(each, Written) and each.tick == step]):
            assert select.select([self.parts.fd], [], [], 30)[0]
            self.parts.turn()
        return found[0]

    def commit(self, step: int, part: Part | None = None) -> Manifest:
        part = part or self.written(step).part
        assert part, self.written(step).error
        manifest = Manifest(
            program="", tick=step, step=step, epoch=0, optimizer={}, work={}, fingerprint={},
            signature=LAYOUT.signature, entries=LAYOUT.entries, tables=(SPEC,), parts=(part,),
        )  # fmt: skip
        commit(self.storage, manifest)
        prune(self.storage, 1)
        return manifest

    def check(self, step: int) -> None:
        """The newest checkpoint, of ``step``, has all rows as they are now."""
        other = self.new_store()
        with Reader(self.storage, load_manifest(self.storage, step)) as reader:
            other.restore(step, reader.read_chunk, reader.read_rows)
        for number, table in self.store.tables.items():
            for mine, restored in zip(
                table.changed(0, step), other.tables[number].changed(0, step), strict=True
            ):
                assert {name: array.tobytes() for name, array in mine.items()} == {
                    name: array.tobytes() for name, array in restored.items()
                }
        assert digest(self.storage, load_manifest(self.storage, step))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.storage.gate.set()
    server.parts.close()


def test_the_last_checkpoint_while_a_whole_one_is_written(server: Server) -> None:
    """It must not go on from files that the whole one takes the place of: they go with its commit."""
    server.train()
    server.commit(server.cut())
    server.train(EVERYBODY[:220])
    server.commit(server.cut())
    server.train(EVERYBODY[:220])  # both together are more than all there is: so the next file is whole
    server.storage.gate.clear()
    whole = server.cut()
    server.train([1, 2, 3])
    last = server.cut()
    server.storage.gate.set()
    server.commit(whole)
    server.commit(last)
    server.check(last)


def test_the_last_checkpoint_after_one_that_was_given_up(server: Server) -> None:
    """Another server could not write its part: the file that is none of the next one's goes with that."""
    server.train()
    server.commit(server.cut())
    server.storage.gate.clear()
    server.train([1])
    given_up = server.cut()
    server.train([2])
    ordered = server.cut()
    server.storage.gate.set()
    server.written(given_up)
    server.storage.gate.clear()
    server.train([3])
    last = server.cut()
    server.storage.gate.set()
    server.commit(ordered)
    server.commit(last)
    server.check(last)


def test_a_commit_of_servers_of_before_that_was_late(server: Server) -> None:
    """Others have written the same step anew by then, and go on from that."""
    server.train()
    server.commit(first := server.cut())
    server.train([1])
    late = server.written(server.cut()).part
    server.load(first, generation=2)
    server.train([1])
    server.written(again := server.cut())
    server.commit(again, late)
    server.check(again)
    server.train([2])
    server.commit(server.cut())
    server.check(server.step)
    assert len(server.storage.list("rows/step-0000000002")) == 1


def test_one_after_the_other(server: Server) -> None:
    """Long chains, and new ones."""
    server.train()
    for number in range(30):
        server.train([*{number % 7, number}], steps=2)
        server.commit(server.cut())
        server.check(server.step)


def test_a_run_whose_place_was_taken_over_writes_over_nothing(tmp_path: Path) -> None:
    """It was frozen, say, and does not know as yet; its servers are called as those that go on are, and its
    model may be another, as with ``mode: async``."""
    before, now = (Server(tmp_path, alone=False) for _ in range(2))
    before.train([1, 2, 3])
    now.train()
    step = now.cut()
    now.written(step)
    assert before.cut() == step
    before.written(step)
    now.commit(step)
    now.check(step)
    for server in (before, now):
        server.parts.close()
