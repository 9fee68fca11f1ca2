"""Workers and servers on one host: the real ends of both, over real sockets, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from server_job import LAYOUT, PARCEL_BYTES, SCHEDULE, WAIT_S, FakeWorker, Job, settings_of, told

from elasticflow.step.layout import Rule, Vector
from elasticflow.step.slices import Node
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.messages import Assignment, Mapped
from elasticflow.wire.seal import Guard
from elasticflow.worker.strategy import Overdue, Position
from elasticflow_ps.client import ParameterServers
from elasticflow_ps.loans import Block
from elasticflow_ps.neighbours import Neighbour, Neighbours

END = SCHEDULE.total_ticks


class Worker:
    """What ``FakeWorker`` computes, through the client that real workers have."""

    def __init__(self, name: str, *, shared: bool) -> None:
        self.state = Vector(LAYOUT)
        for flat in self.state.groups:
            flat[:] = np.random.default_rng(1).normal(size=flat.size)
        self.name, self._wake_fd = name, os.eventfd(0, os.EFD_NONBLOCK)
        settings = msgspec.structs.replace(settings_of(name), role="worker", shared_memory=shared)
        self.strategy = ParameterServers(settings, self.state, self._wake_fd)
        self.position = Position(version=-1, shares=())
        self.pushed: list[Vector] = []

    def connect(self, assignment: Assignment) -> None:
        self.strategy.connect(told(self.name, assignment))
        self.wait()

    def wait(self) -> None:
        while not isinstance(event := self.strategy.wait(), Position):
            assert isinstance(event, Overdue), event  # the others do it
        self.position = event

    def wait_until_sent(self) -> None:
        """All that was pushed has left: how soon it does is up to who sends and who reads."""
        for _, trackers in self.strategy._pool._sending:
            for tracker in trackers:
                if isinstance(tracker, zmq.MessageTracker):
                    tracker.wait(WAIT_S)

    def push(self, *, early: bool = False) -> None:
        """early: as the gradients become final, last ones first, and the sum of two parts."""
        tick, total = self.position.version, self.strategy.spare()
        noise = np.random.default_rng(tick)
        for flat, into in zip(self.state.groups, total.groups, strict=True):
            into[:] = noise.normal(size=flat.size) * 10
            if flat.dtype.kind == "f":
                into += flat * flat.dtype.type(0.1)
        self.pushed.append(total)
        if not early:
            return self.strategy.push(self.position, Node(1, 0), total, lr=None, slice_s=0.001, last=True)
        rest = self.strategy.spare()
        parameters = LAYOUT.of_rule(Rule.UPDATE)
        for group in rest.groups:
            group[:] = -1  # of a slice that has not been computed yet
        push = self.strategy.begin(
            self.position, Node(1, 0), [total, rest], lr=None, slice_s=0.001, last=True
        )
        for number in reversed(range(len(parameters))):
            rest.tensors(parameters)[number][...] = 0
            push.ready(number)
        for group in rest.groups:
            group[:] = 0
        assert push.begun is self.strategy.streams
        push.finish(0.001)

    def train(self, until: int, *, early: bool = False) -> None:
        while self.position.version < until:
            self.push(early=early)
            self.wait()

    def model(self) -> list[bytes]:
        kept = zip(self.state.groups, LAYOUT.groups, strict=True)
        return [flat.tobytes() for flat, group in kept if group.rule is not Rule.REPORT]

    @property
    def is_neighbour(self) -> bool:
        """Whether arrays go through memory, both ways, to and from all servers."""
        return all(remote.mapped and remote.blocks for remote in self.strategy._remotes)

    def close(self) -> None:
        self.strategy.close()
        os.close(self._wake_fd)


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes what is closed after the test."""
    made: list[Any] = []

    def begin(kind: type, *arguments: Any, **more: Any) -> Any:
        made.append(kind(*arguments, **more))
        return made[-1]

    yield begin
    for each in reversed(made):
        each.close()


@pytest.fixture
def job(make: Make, tmp_path: Path) -> Job:
    return make(Job, DirectoryStorage(tmp_path), 2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[list[bytes]]:
    """Of each version, where arrays travel in frames."""
    job, worker = Job(DirectoryStorage(tmp_path_factory.mktemp("quiet")), 1), FakeWorker()
    worker.connect(job.assign())
    found = [worker.model()]
    while worker.version < END:
        worker.step()
        found.append(worker.model())
    worker.close()
    job.close()
    return found


@pytest.mark.parametrize("guard", [Guard.ARRAYS, Guard.ALL])
def test_the_bits_are_those_of_frames_however_they_are_guarded(
    make: Make, job: Job, models: list[list[bytes]], guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between workers and servers, and between servers, which keep each other's chunks."""
    for module in ("remote_row", "ways"):
        monkeypatch.setattr(f"elasticflow_ps.{module}.guard_to", lambda endpoint, settings: guard)
    worker = make(Worker, "worker-1", shared=False)
    worker.connect(job.assign())
    worker.train(END)
    assert worker.model() == models[END]
    assert all(process.server._dropped == 0 for process in job.row) and worker.strategy.dropped == 0


@pytest.mark.parametrize("shared", [True, False])
def test_the_bits_are_those_of_frames(make: Make, job: Job, models: list[list[bytes]], shared: bool) -> None:
    worker = make(Worker, "worker-1", shared=shared)
    worker.connect(job.assign())
    for version in range(END):
        assert worker.model() == models[version]
        worker.train(version + 1)
        worker.wait_until_sent()
    assert worker.model() == models[END]
    assert worker.is_neighbour is shared
    assert all(process.server._dropped == 0 for process in job.row) and worker.strategy.dropped == 0
    assert len(set(map(id, worker.pushed))) <= 3, "vectors are used again"


@pytest.mark.parametrize("shared", [True, False])
def test_the_bits_are_the_same_where_gradients_leave_as_they_become_final(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, models: list[list[bytes]], shared: bool
) -> None:
    monkeypatch.setattr("elasticflow_ps.parcels.CHUNK_BYTES", PARCEL_BYTES)
    job = make(Job, DirectoryStorage(tmp_path), 2)
    worker = make(Worker, "worker-1", shared=shared)
    worker.connect(job.assign())
    assert worker.strategy.streams
    worker.train(END, early=True)
    assert worker.model() == models[END]
    assert len(set(map(id, worker.pushed))) <= 4
    assert all(process.server._dropped == 0 for process in job.row) and worker.strategy.dropped == 0


def test_who_reads_late_reads_what_it_was_told_of(make: Make, job: Job, models: list[list[bytes]]) -> None:
    """The servers do not write where a version lies that somebody may still be reading."""
    assignment = job.assign()
    quick, late = (make(Worker, name, shared=True) for name in ("quick", "late"))
    late.strategy.give_back(late.strategy.spare())  # which is lent: so they are neighbours
    quick.connect(assignment)
    late.connect(assignment)
    quick.train(5)
    late.strategy.ask(late.position)
    while late.position.version < 5:
        late.wait()
    for goal in (9, 14, 15):  # so many pushes, then a look at the version that it has been waiting for
        version = late.position.version
        late.strategy.ask(late.position)
        quick.train(goal)
        late.wait()
        assert late.position.version > version
        assert late.model() == models[late.position.version]
    quick.train(END)
    assert quick.model() == models[END]
    assert quick.is_neighbour and late.is_neighbour


def test_what_is_on_its_way_when_a_generation_ends_is_not_filled_again(
    make: Make, job: Job, models: list[list[bytes]]
) -> None:
    worker = make(Worker, "worker-1", shared=True)
    worker.connect(job.assign())
    worker.train(6)
    worker.push()  # the servers may be reading it, now or when they are halted
    worker.connect(job.regroup())
    worker.train(END)
    assert worker.model() == models[END] and worker.is_neighbour
    assert worker.pushed[6] not in worker.pushed[7:]


def test_memory_does_not_grow_with_the_generations(make: Make, job: Job) -> None:
    worker = make(Worker, "worker-1", shared=True)
    worker.connect(job.assign())
    worker.train(4)
    held = [process.server._chunks.store.num_bytes for process in job.row]
    for _ in range(6):
        worker.connect(job.regroup())
        worker.train(worker.position.version + 2)
    stores = [process.server._chunks.store for process in job.row]
    assert all(store.num_bytes <= 2 * before for store, before in zip(stores, held, strict=True))
    assert all(not process.server._neighbours._former for process in job.row)


def test_who_comes_again_in_the_same_generation_is_lent_everything_anew(
    make: Make, job: Job, models: list[list[bytes]]
) -> None:
    """It has let go of a connection of which the server may not have heard that it is closed."""
    worker = make(Worker, "worker-1", shared=True)
    assignment = job.assign()
    for version in (4, 9, END):
        worker.connect(assignment)
        worker.train(version)
        assert worker.model() == models[version] and worker.is_neighbour


def test_what_is_asked_for_again_is_not_written_to_meanwhile() -> None:
    neighbours = Neighbours.__new__(Neighbours)
    neighbours._here = {"worker-1": Neighbour(os.getpid())}
    neighbours.has("worker-1", 5)
    readings = {version: neighbours.reading("worker-1", version) for version in (4, 5, 6)}
    assert [reading.done for reading in readings.values()] == [True, True, False]
    neighbours.has("worker-1", 4)  # it has asked for 5 again
    assert [reading.done for reading in readings.values()] == [True, False, False]


def test_nonsense_lends_nothing(make: Make, job: Job) -> None:
    worker = make(Worker, "worker-1", shared=True)
    worker.connect(job.assign())
    worker.train(2)
    right, small = Block(LAYOUT.num_bytes), Block(64)
    lend = right.lend()
    replace = msgspec.structs.replace
    for message in (
        replace(lend, pid=2**40),
        replace(lend, pid=os.getppid()),
        replace(lend, secret=b""),
        small.lend(),
        Mapped(number=10**6),
    ):
        for remote in worker.strategy._remotes:
            remote.link.send(message)
    worker.train(END)
    assert [process.server._dropped for process in job.row] == [4, 4]


def test_a_neighbour_that_is_dead_reads_no_more() -> None:
    pid = os.fork()
    if pid == 0:
        os.read(os.pipe()[0], 1)
        os._exit(0)
    neighbour = Neighbour(pid)
    assert not neighbour.has_parted()
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert neighbour.has_parted()
    os.waitpid(pid, 0)
    assert neighbour.has_parted()
    with pytest.raises(OSError):
        Neighbour(pid)
