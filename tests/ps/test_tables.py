"""Servers with tables, over real sockets: what makes no sense changes nothing, and ends nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import server_job
import zmq
from server_job import KEYS, SCHEDULE, WAIT_S, Job

from elasticflow import checkpoint
from elasticflow.api import Adagrad
from elasticflow.checkpoint import Manifest
from elasticflow.embedding import TableSpec, Uniform
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.rows import EARLY_MOST, bounds, first_values, keys_of, part_of, table_seed
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.data import DataLink
from elasticflow.wire.messages import (
    Initial,
    Pull,
    Push,
    Read,
    RowsRead,
    Settled,
    Uninitialised,
    Version,
    Written,
)
from elasticflow.wire.seal import Guard
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.store import Store
from elasticflow_ps.tables import tables_of

DIM = 4
ENTRIES = (
    Entry("w", (64,), "float32", Rule.UPDATE),
    Entry("t", (0, DIM), "float32", Rule.ROWS),
    Entry("report", (2,), "float64", Rule.REPORT),
)
LAYOUT = Layout(ENTRIES)
SPEC = TableSpec(
    rows=None, dim=DIM, initializer=Uniform(), optimizer=Adagrad(lr=0.1), min_count=1, evict_after_steps=0
)
SOME = np.sort(keys_of(np.arange(500)))


def test_rows_may_be_the_first_that_is_made_of_a_version() -> None:
    """Where slices are applied one by one: who asks again for the version before, just then, is told so."""
    parcels = parcels_of(LAYOUT, spread(LAYOUT, 1)[0])
    tables = tables_of(LAYOUT, [SPEC], Adagrad(lr=0.1), parcels, 0)
    store = Store(parcels, kernel_for(Adagrad(lr=0.1)), tables=tables)
    (table,) = tables
    assert store.arrays(1, parcels[table]) == []


class Worker:
    """A connection to one server, for rows and pushes of its parcels."""

    def __init__(self, job: Job, place: int, at: int = 0) -> None:
        self.context: Any = zmq.Context()
        info = job.assignment.servers[place]
        self.parcels = parcels_of(LAYOUT, info.chunks)
        (self.table,) = (parcel for parcel in self.parcels if parcel.table is not None)
        way = KEYS.of(info.name).pass_for("worker-1", job.assignment.generation)
        self.link = DataLink(self.context, way, info.endpoint, Guard.HEADERS)
        while not self.link.greeted:
            self._poll()
            self.link.receive()
        self.version = at - 1
        self.early: list[int] = []
        """Numbers of the questions that were answered while a version was waited for."""
        self.pull()

    @property
    def mine(self) -> Any:
        return SOME[part_of(SOME, self.table.buckets.start, self.table.buckets.stop)]

    def _poll(self) -> None:
        assert zmq.select([self.link.socket, self.link.monitor], [], [], timeout=WAIT_S)[0]
        assert not self.link.is_closed()

    def hear(self) -> tuple[Any, list[memoryview]]:
        while (received := self.link.receive()) is None:
            self._poll()
        return received

    def pull(self) -> None:
        self.link.send(Pull(version=self.version + 1))
        missing = {parcel.number for parcel in self.parcels}
        while missing:
            message, _ = self.hear()
            if isinstance(message, Uninitialised):
                for parcel in self.parcels:
                    self.link.send(Initial(parcel=parcel.number), parcel_values(parcel))
            elif isinstance(message, Version):
                missing.discard(message.parcel)
            else:
                self.early.append(message.number)
        self.version += 1

    def ask(self, number: int, version: int, keys: Any, frames: Any = None) -> None:
        question = Read(number=number, version=version, parcel=self.table.number)
        self.link.send(question, [keys] if frames is None else frames)

    def rows(self, number: int, version: int, keys: Any) -> Any:
        """What the server answers to question ``number``, and to no other; None: gone."""
        self.ask(number, version, keys)
        message, frames = self.hear()
        assert isinstance(message, RowsRead) and message.number == number
        return None if message.gone else np.frombuffer(b"".join(frames), np.float32).reshape(len(keys), DIM)

    def push(self, frames: Any, *, tick: int | None = None, cut: bool = False) -> None:
        tick = self.version if tick is None else tick
        self.link.send(Push(tick=tick, parcel=self.table.number, level=1, index=0, cut=cut), frames)

    def step(self, keys: Any, *, cut: bool = False) -> None:
        """A gradient of ones for these rows, and of zeros elsewhere. cut: with a checkpoint after it."""
        self.push([keys, np.ones((len(keys), DIM), np.float32)], cut=cut)
        for parcel in self.parcels:
            if parcel.table is None:
                message = Push(tick=self.version, parcel=parcel.number, level=1, index=0, cut=cut)
                self.link.send(message, [np.zeros(len(span), span.dtype) for span in parcel.spans])
        self.pull()

    def close(self) -> None:
        self.link.close(linger_ms=0)
        self.context.destroy(linger=0)


def parcel_values(parcel: Parcel) -> list[Any]:
    return [np.ones(len(span), span.dtype) for span in parcel.state]


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], tuple[Job, list[Worker]]]]:
    monkeypatch.setattr(server_job, "ENTRIES", ENTRIES)
    monkeypatch.setattr(server_job, "LAYOUT", LAYOUT)
    begun: list[Any] = []

    def begin() -> tuple[Job, list[Worker]]:
        job = Job(DirectoryStorage(tmp_path), 2, snapshot_s=0.0)
        job.spec = msgspec.structs.replace(job.spec, tables=(SPEC,))
        begun.append(job)
        job.assign()
        begun.append(workers := [Worker(job, place) for place in range(2)])
        return job, workers

    yield begin
    job, workers = begun
    for worker in workers:
        worker.close()
    job.close()


def bad_keys(worker: Worker) -> dict[str, Any]:
    smallest, largest = bounds(worker.table.buckets.start, worker.table.buckets.stop)
    mine = worker.mine
    return {
        "not ascending": mine[::-1].copy(),
        "twice": np.repeat(mine[:2], 2),
        "below": np.array([max(smallest, 1) - 1, *mine], np.uint64) if smallest else mine[[1, 0]],
        "above": np.array([*mine, largest + 1], np.uint64) if largest < 2**64 - 1 else mine[[1, 0]],
        "all": SOME,
    }


def test_what_makes_no_sense_changes_nothing(start: Callable[[], tuple[Job, list[Worker]]]) -> None:
    job, workers = start()
    seed = table_seed(job.assignment.seed, "t")
    dropped = 0
    for worker, process in zip(workers, job.row, strict=True):
        mine = worker.mine
        ones = np.ones((len(mine), DIM), np.float32)
        for _, keys in sorted(bad_keys(worker).items()):
            worker.ask(1, 0, keys)
            worker.push([keys, np.ones((len(keys), DIM), np.float32)])
        odd = np.frombuffer(bytes(7), np.uint8)
        for frames in ([], [odd], [mine], [mine, ones, mine], [mine, ones[:-1]], [mine, odd], [odd, ones]):
            worker.push(frames)
        worker.push([mine, ones], tick=SCHEDULE.total_ticks)
        worker.push([mine, ones], tick=-1)
        for frames in ([], [odd], [mine, odd]):
            worker.ask(1, 0, mine, frames)
        for version in (-1, 2, 1 << 40):
            worker.ask(1, version, mine)
        for parcel in (-1, len(worker.parcels), *(p.number for p in worker.parcels if p.table is None)):
            worker.link.send(Read(number=1, version=0, parcel=parcel), [mine])
        worker.link.send(Initial(parcel=worker.table.number), [ones])
        np.testing.assert_array_equal(worker.rows(2, 0, mine), first_values(Uniform(), seed, mine, DIM))
        dropped = process.server.heartbeat().dropped
        assert dropped >= 2 * 5 + 7 + 2 + 3 + 3 + 2
    for worker in workers:
        worker.step(worker.mine[:10])
    for worker in workers:
        mine = worker.mine
        before, after = worker.rows(3, 0, mine), worker.rows(4, 1, mine)
        np.testing.assert_array_equal(before, first_values(Uniform(), seed, mine, DIM))
        np.testing.assert_allclose(before[:10] - after[:10], 0.1, rtol=1e-5)
        np.testing.assert_array_equal(before[10:], after[10:])
        assert worker.rows(5, 1, mine[:0]).shape == (0, DIM)


def test_a_version_long_past_is_gone(start: Callable[[], tuple[Job, list[Worker]]]) -> None:
    _, workers = start()
    for _ in range(2):
        for worker in workers:
            worker.step(worker.mine[:3])
    for worker in workers:
        assert worker.rows(1, 0, worker.mine) is None
        assert worker.rows(2, 1, worker.mine).shape == (len(worker.mine), DIM)


def test_rows_of_the_next_version_wait_for_it(start: Callable[[], tuple[Job, list[Worker]]]) -> None:
    _, (worker, _) = start()
    mine = worker.mine
    worker.ask(7, 1, mine)
    before = worker.rows(1, 0, mine)  # whoever waits holds up nobody
    worker.push([mine, np.ones((len(mine), DIM), np.float32)])
    message, frames = worker.hear()
    while isinstance(message, Version):
        message, frames = worker.hear()
    assert isinstance(message, RowsRead) and message.number == 7
    early = np.frombuffer(b"".join(frames), np.float32).reshape(len(mine), DIM)
    np.testing.assert_allclose(before - early, 0.1, rtol=1e-5)
    np.testing.assert_array_equal(early, worker.rows(8, 1, mine))


def test_what_was_asked_over_another_connection_is_not_answered_over_this_one(
    start: Callable[[], tuple[Job, list[Worker]]],
) -> None:
    job, workers = start()
    workers[0].ask(7, 1, workers[0].mine)
    assert workers[0].rows(1, 0, workers[0].mine[:1]) is not None  # it has been heard
    again = Worker(job, 0)
    workers.append(again)
    again.ask(8, 1, again.mine[:2])
    again.step(again.mine[:3])
    if not again.early:
        again.early.append(again.hear()[0].number)
    assert again.rows(9, 1, again.mine[:1]) is not None and again.early == [8]


def test_not_any_number_of_questions_may_wait(start: Callable[[], tuple[Job, list[Worker]]]) -> None:
    job, (worker, _) = start()
    for number in range(EARLY_MOST + 5):
        worker.ask(100 + number, 1, worker.mine[:1])
    assert worker.rows(1, 0, worker.mine[:2]) is not None
    assert job.row[0].server.heartbeat().dropped == 5
    worker.step(worker.mine[:3])
    while len(worker.early) < EARLY_MOST:
        worker.early.append(worker.hear()[0].number)
    assert worker.early == list(range(100, 100 + EARLY_MOST))


def train(workers: list[Worker], number: int, *, cut: bool = False) -> None:
    for worker in workers:
        worker.step(worker.mine[number % 5 :: 7].copy(), cut=cut)


def commit(job: Job) -> int:
    """Of what has been cut last in this generation; the step."""
    tick = max(each.tick for each in job.row[0].link.said if isinstance(each, Written))
    parts = [
        process.link.hear(Written, lambda w: (w.generation, w.tick) == (job.generation, tick)).part
        for process in job.row
    ]
    assert all(parts)
    manifest = Manifest(
        program="", tick=tick, step=tick, epoch=0, optimizer={}, work={}, fingerprint={},
        signature=LAYOUT.signature, entries=ENTRIES, tables=(SPEC,),
        parts=tuple(part for part in parts if part),
    )  # fmt: skip
    checkpoint.commit(job.storage, manifest)
    checkpoint.prune(job.storage, 1)
    for process in job.row:
        process.link.tell(Settled(tick=tick))
    return tick


def test_rows_go_on_through_generations(start: Callable[[], tuple[Job, list[Worker]]]) -> None:
    """From memory, where nobody was lost, with a checkpoint that was not committed; and from storage."""
    job, workers = start()
    train(workers, 0)
    train(workers, 1, cut=True)
    job.row[0].link.hear(Written)
    assert commit(job) == 2
    train(workers, 2, cut=True)
    for process in job.row:
        process.link.hear(Written, lambda written: written.tick == 3)
    train(workers, 3)
    assert job.regroup().in_memory
    for worker in workers:
        worker.close()
    workers[:] = [Worker(job, place, at=4) for place in range(2)]
    train(workers, 4)
    train(workers, 5, cut=True)
    job.row[0].link.hear(Written, lambda written: written.generation == 2)
    assert commit(job) == 6
    before = [worker.rows(1, 6, worker.mine).tobytes() for worker in workers]
    train(workers, 6)
    job.replace(1)
    job.assign(start_tick=6, restore_step=6)
    for worker in workers:
        worker.close()
    workers[:] = [Worker(job, place, at=6) for place in range(2)]
    assert [worker.rows(1, 6, worker.mine).tobytes() for worker in workers] == before
    train(workers, 6, cut=True)
    job.row[0].link.hear(Written, lambda written: written.generation == 3)
    assert commit(job) == 7
    assert checkpoint.verify(job.storage, 7) == []
