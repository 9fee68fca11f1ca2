"""Real servers over real sockets, in threads, with a master and a worker made for the test."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from elasticflow.api import Adam, Optimizer
from elasticflow.checkpoint import Manifest, Part, commit
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.step.schedule import Schedule
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.data import DataLink, DataListener
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import make_keys
from elasticflow.wire.messages import (
    Assignment,
    FromMaster,
    FromServer,
    Gone,
    Halt,
    Initial,
    Join,
    Offer,
    Progress,
    Pull,
    Push,
    Quit,
    Ready,
    ServerInfo,
    Spec,
    ToMaster,
    Uninitialised,
    Version,
    Written,
)  # fmt: skip
from elasticflow.wire.seal import Guard
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.server import ParameterServer

KEYS = make_keys()
WAIT_S = 30.0
"""Longer than anything here takes: after it a test has failed."""
ENTRIES = (
    Entry("w", (300, 500), "float32", Rule.UPDATE),
    Entry("v", (70,), "float64", Rule.UPDATE),
    Entry("mean", (5,), "float32", Rule.MEAN),
    Entry("count", (), "int64", Rule.FIRST),
    Entry("report", (2,), "float64", Rule.REPORT),
)
LAYOUT = Layout(ENTRIES)
SCHEDULE = Schedule(num_records=320, num_test=8, batch_size=8, num_slices=2, epochs=2)
"""40 steps and one tick that evaluates, twice."""
PARCEL_BYTES = 80_000
"""Makes several parcels of so small a model, large enough to be sent without a copy."""

M = TypeVar("M", bound=ToMaster)


def told(name: str, assignment: Assignment) -> Assignment:
    """As the master tells it to this member."""
    passes = KEYS.passes(name, (info.name for info in assignment.servers), assignment.generation)
    return msgspec.structs.replace(assignment, passes=passes)


class Killed(BaseException):
    """What ends a server at once, wherever it waits."""


class FakeMasterLink:
    """A server's end of a line to a master that is the test itself."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.said: list[ToMaster] = []
        self.frozen = threading.Event()
        self._inbox: deque[FromMaster | type[Killed] | threading.Event] = deque()
        self._news = threading.Condition()

    def send(self, message: ToMaster) -> None:
        with self._news:
            self.said.append(message)
            self._news.notify_all()

    def start_heartbeats(self) -> None:
        pass

    def received(self) -> list[FromMaster]:
        os.eventfd_read(self.wake_fd)
        messages: list[FromMaster] = []
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, threading.Event):  # the process is frozen here
                self.frozen.set()
                message.wait()
            elif message is Killed:
                raise Killed
            else:
                messages.append(message)  # type: ignore[arg-type]
        return messages

    def tell(self, message: Any) -> None:
        self._inbox.append(message)
        os.eventfd_write(self.wake_fd, 1)

    def hear(self, kind: type[M], fits: Callable[[M], bool] = lambda message: True) -> M:
        """The first such message that the server has said, or will say."""
        found: list[M] = []

        def is_there() -> bool:
            found[:] = [each for each in self.said if isinstance(each, kind) and fits(each)]
            return bool(found)

        with self._news:
            assert self._news.wait_for(is_there, WAIT_S), f"no such {kind.__name__} in {self.said[-5:]}"
        return found[0]


class Process:
    """A server in a thread."""

    def __init__(self, job: Job, name: str) -> None:
        self.name = name
        self.link = FakeMasterLink()
        self.error: BaseException | None = None
        self._frozen = threading.Event()
        self._settings = settings_of(name)
        self._context: Any = zmq.Context()
        self._gate = admit_only_members(self._context, KEYS.of(name))
        listener = DataListener(self._context, KEYS.of(name), "127.0.0.1", 0)
        self.server = ParameterServer(self._settings, job.storage, self._context, listener, self.link)
        self._listener = listener
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.endpoint = self.link.hear(Join).endpoint

    def _run(self) -> None:
        try:
            self.server.run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            self.error = error
        self.server.close()
        self._listener.close()

    def freeze(self) -> None:
        """It lives, but does nothing any more."""
        self.link.tell(self._frozen)

    def thaw_after_loss(self) -> None:
        """It goes on once there is all that somebody has sent, who has let go of it since."""
        assert zmq.select([self._listener.monitor], [], [], timeout=WAIT_S)[0], "nobody has let go"
        self._frozen.set()

    def kill(self) -> None:
        """All its connections close."""
        self._frozen.set()
        self.link.tell(Killed)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._gate.stop()
        self._context.term()
        os.close(self.link.wake_fd)
        if self.error:
            raise self.error


def settings_of(name: str) -> MemberSettings:
    return MemberSettings(
        name=name, role="server", host="127.0.0.1", master="", run_dir="", program="", seed=0,
        threads=1, batch_size=8, num_slices=2, heartbeat_s=0.1, lost_s=60, storage_patience_s=0.2,
        encrypt_data=False, timeline=False,
    )  # fmt: skip


class Job:
    """A row of servers, and what a master does with it.

    standby: the last place has no chunks.
    """

    def __init__(
        self,
        storage: DirectoryStorage,
        servers: int = 2,
        *,
        standby: bool = False,
        clips: bool = False,
        optimizer: Optimizer | None = None,
        snapshot_s: float = 1e-4,
    ) -> None:
        self.storage, self.snapshot_s = storage, snapshot_s
        clip_norm = 1.0 if clips else None
        self.spec = Spec(
            framework="none",
            entries=ENTRIES,
            optimizer=optimizer or Adam(lr=0.01, clip_norm=clip_norm),
            metrics=("accuracy",),
            num_records=SCHEDULE.num_records,
            num_test=SCHEDULE.num_test,
            data_signature="",
        )
        self.chunks = [*spread(LAYOUT, servers - standby), *([[]] if standby else [])]
        self.generation = 0
        self.row = [Process(self, f"server-{number}") for number in range(servers)]
        self._next = servers
        self.dead: list[Process] = []

    @property
    def holding(self) -> list[int]:
        return [place for place, chunks in enumerate(self.chunks) if chunks]

    def assign(self, *, wait: bool = True, **more: Any) -> Assignment:
        """Begins the next generation."""
        self.generation += 1
        holders = more.pop("holders", {})
        infos = tuple(
            ServerInfo(
                name=process.name,
                endpoint=process.endpoint,
                chunks=tuple(chunks),
                holder=holders.get(place, ""),
            )
            for place, (process, chunks) in enumerate(zip(self.row, self.chunks, strict=True))
        )
        assignment = Assignment(
            generation=self.generation,
            schedule=SCHEDULE,
            spec=self.spec,
            seed=0,
            servers=infos,
            snapshot_s=self.snapshot_s,
            **more,
        )
        self.assignment = assignment
        for process in self.row:
            process.link.tell(told(process.name, assignment))
        if wait:
            self.wait_until_ready()
        return assignment

    def wait_until_ready(self) -> None:
        for process in self.row:
            process.link.hear(Ready, lambda ready: ready.generation == self.generation)

    def replace(self, place: int) -> None:
        """A server is dead; another one joins in its place."""
        self.row[place].kill()
        self.dead.append(self.row[place])
        self.row[place] = Process(self, f"server-{self._next}")
        self._next += 1

    def offers(self, survivors: Iterable[int]) -> dict[int, set[tuple[int, int]]]:
        """Halts the servers at these places; what they offer."""
        for place in survivors:
            self.row[place].link.tell(Halt(generation=self.generation + 1))
        return {
            place: set(self.row[place].link.hear(Offer, lambda o: o.generation == self.generation + 1).held)
            for place in survivors
        }

    def regroup(self, *lost: int, **more: Any) -> Assignment:
        """Halts the others, and begins anew where all can: in memory, else from the beginning."""
        survivors = [place for place in range(len(self.row)) if place not in lost]
        offers = self.offers(survivors)
        held = set().union(*offers.values()) if offers else set()
        common = set.intersection(*({v for at, v in held if at == place} for place in self.holding))
        if not common:
            return self.assign(**more)
        start = max(common)
        holders = {}
        for place in self.holding:
            if (place, start) not in offers.get(place, ()):
                holder = next(at for at, copies in offers.items() if (place, start) in copies)
                holders[place] = self.row[holder].name
        return self.assign(start_tick=start, in_memory=True, holders=holders, **more)

    def written(self) -> tuple[int, list[Part]]:
        """The parts of a checkpoint of this generation, once all are there, and its tick."""
        parts = [
            self.row[place].link.hear(Written, lambda w: w.generation == self.generation)
            for place in self.holding
        ]
        assert len({part.tick for part in parts}) == 1
        assert all(part.part for part in parts), parts
        return parts[0].tick, [part.part for part in parts if part.part]

    def commit(self) -> Manifest:
        """Commits what has been cut in this generation."""
        tick, parts = self.written()
        manifest = Manifest(
            program="",
            tick=tick,
            step=SCHEDULE.steps_before(tick),
            epoch=0,
            optimizer={},
            work={},
            fingerprint={},
            signature=LAYOUT.signature,
            entries=ENTRIES,
            parts=tuple(parts),
        )
        commit(self.storage, manifest)
        return manifest

    def close(self) -> None:
        for process in self.row:
            process.link.tell(Quit(reason="the test is over"))
        for process in self.row:
            process.kill()


class Severed(Exception):
    """A connection to a server has closed."""


class FakeWorker:
    """Does all the work there is, as fast as the servers can take it.

    What it pushes depends on the parameters, the tick and nothing else.
    """

    def __init__(self, name: str = "worker-1") -> None:
        self.name = name
        self.context: Any = zmq.Context()
        self.state = Vector(LAYOUT)
        for flat in self.state.groups:
            flat[:] = np.random.default_rng(1).normal(size=flat.size)
        self._initial = [flat.copy() for flat in self.state.groups]
        self._total = Vector(LAYOUT)
        self.links: list[tuple[DataLink, list[Parcel]]] = []
        self.orders = Version(version=-1, parcel=0)
        self.snapshots: list[int] = []
        """Versions of which a snapshot was ordered."""
        self._clip_scale = 1.0

    @property
    def version(self) -> int:
        return self.orders.version

    def connect(self, assignment: Assignment, at: int | None = None) -> None:
        """Meets all servers of a generation at its first version, or at the one they are at."""
        self.greet(assignment)
        for link, _ in self.links:
            link.send(Pull(version=-1))
        self._collect()
        assert self.version == (assignment.start_tick if at is None else at)

    def greet(self, assignment: Assignment) -> None:
        """Is let in by all servers of a generation."""
        self.disconnect()
        for info in assignment.servers:
            if info.chunks:
                way = KEYS.of(info.name).pass_for(self.name, assignment.generation)
                link = DataLink(self.context, way, info.endpoint, Guard.HEADERS)
                self.links.append((link, parcels_of(LAYOUT, info.chunks)))
        for link, _ in self.links:
            while not link.greeted:
                self._poll(link)
                assert link.receive() is None

    def disconnect(self, linger_ms: int = 0) -> None:
        for link, _ in self.links:
            link.close(linger_ms=linger_ms)
        self.links.clear()

    def _poll(self, link: DataLink) -> None:
        assert zmq.select([link.socket, link.monitor], [], [], timeout=WAIT_S)[0], "nothing comes"
        if link.is_closed():
            raise Severed

    def _collect(self) -> None:
        """The next version from all servers."""
        for number, (link, parcels) in enumerate(self.links):
            missing = set(range(len(parcels)))
            while missing:
                received = link.receive()
                if received is None:
                    self._poll(link)
                    continue
                message, frames = received
                if isinstance(message, Uninitialised):
                    self._initialise(link, parcels)
                elif isinstance(message, Version):
                    missing.remove(message.parcel)
                    for span, frame in zip(parcels[message.parcel].state, frames, strict=not message.same):
                        np.copyto(span.view(self.state), np.frombuffer(frame, span.dtype))
                    if number == 0 and message.parcel == 0:
                        self.orders = message
                else:
                    assert not isinstance(message, Gone), message
        if self.orders.snapshot:
            self.snapshots.append(self.version + 1)

    def _initialise(self, link: DataLink, parcels: list[Parcel]) -> None:
        for flat, initial in zip(self.state.groups, self._initial, strict=True):
            flat[:] = initial
        for parcel in parcels:
            link.send(Initial(parcel=parcel.number), [span.view(self.state).copy() for span in parcel.state])

    def push(
        self, places: Iterable[int] | None = None, parcels: int | None = None, *, finish: bool = False
    ) -> None:
        """The whole of this tick; to some servers, or some parcels, alone."""
        tick = self.version
        noise = np.random.default_rng(tick)
        for flat, into in zip(self.state.groups, self._total.groups, strict=True):
            into[:] = noise.normal(size=flat.size) * 10
            if flat.dtype.kind == "f":
                into += flat * flat.dtype.type(0.1)
        for number in range(len(self.links)) if places is None else places:
            link, own = self.links[number]
            for parcel in own[:parcels]:
                message = Push(
                    tick=tick,
                    parcel=parcel.number,
                    level=1,
                    index=0,
                    cut=self.orders.cut,
                    snapshot=self.orders.snapshot,
                    finish=self.orders.finish or finish,
                    slice_s=0.001,
                    pull=parcel.number == 0,
                )
                arrays = parcel.views(self._total, SCHEDULE.at(tick).kind)
                link.send(message, [array.copy() for array in arrays])

    def wait_for_one_parcel(self, place: int) -> None:
        """Of the next version; it is thrown away."""
        message = self.wait_for_anything(place)
        assert isinstance(message, Version) and message.version == self.version + 1

    def wait_for_anything(self, place: int) -> FromServer:
        """The next message from a server."""
        link, _ = self.links[place]
        while (received := link.receive()) is None:
            self._poll(link)
        return received[0]

    def step(self) -> None:
        self.push()
        self._collect()

    def train(self, until: int) -> None:
        while self.version < until:
            self.step()

    def train_until_kept(self, count: int = 1) -> None:
        """Until so many more snapshots are safe everywhere: that is so when the next one is ordered."""
        goal = len(self.snapshots) + 1 + count
        while len(self.snapshots) < goal:
            assert self.version < SCHEDULE.total_ticks, "no snapshot becomes safe"
            self.step()

    def model(self) -> list[bytes]:
        kept = zip(self.state.groups, LAYOUT.groups, strict=True)
        return [flat.tobytes() for flat, group in kept if group.rule is not Rule.REPORT]

    def close(self) -> None:
        self.disconnect()
        self.context.destroy(linger=0)


def evaluations(job: Job) -> dict[int, tuple[float, ...]]:
    """All that a leading server has told, which must not contradict itself."""
    found: dict[int, tuple[float, ...]] = {}
    for process in [*job.dead, *job.row]:
        for message in process.link.said:
            if isinstance(message, Progress):
                for tick, values in message.evaluations:
                    assert found.setdefault(tick, values) == values
    return found
