"""A whole run in simulated time: the real state machines, with processes and a network made of a seed.

Real: ``MasterState`` and ``ServerState``, driven as ``master/server.py`` and ``elasticflow_ps/server.py``
drive them, timers included. Imitated, line by line: ``worker.py`` and ``client.py``, as generators
that yield seconds while they compute and None while they wait. What is computed are symbols
(``truth.py``), so whatever a server makes or a worker gets is compared at once with what an
undisturbed run has.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from elasticflow.api import SGD
from elasticflow.checkpoint import Part
from elasticflow.config import Config
from elasticflow.layout import Entry, Rule
from elasticflow.master import state as ms
from elasticflow.messages import (
    Assignment,
    Attempt,
    Clip,
    Compute,
    Cut,
    Drain,
    Faulty,
    Finish,
    Gone,
    Heartbeat,
    Initial,
    Join,
    Leaving,
    Lost,
    Plan,
    Progress,
    Pull,
    Push,
    Quarantine,
    Quit,
    Ready,
    Settled,
    Share,
    Spec,
    Uninitialised,
    Version,
    Written,
)  # fmt: skip
from elasticflow.schedule import Schedule, Work
from elasticflow.slices import Node, SliceTree, nodes_of
from elasticflow_ps import state as ss

from .truth import Truth, combine, learning_rate, norm_of, truth_of, updated

PROGRESS_S = 0.1
MOST_EVENTS = 10_000
"""More than any run that comes to an end needs; most need 200."""
MOST_TURNS_AT_ONCE = 20
"""A timer that is due so many times in a row at one instant spins."""

ENTRIES = (
    Entry("weights", (40,), "float32", Rule.UPDATE),
    Entry("report", (1,), "float32", Rule.REPORT),
)


@dataclass(frozen=True)
class Shape:
    """What is to be computed, by how many, and what goes wrong besides the faults.

    parcels: of each server. bad: (tick, slice) on which the program raises until its record is left out.
    """

    schedule: Schedule
    parcels: tuple[int, ...]
    workers: int
    clips: bool
    checkpoint_every: str
    start: tuple[int, int] | None = None
    bad: tuple[tuple[int, int], ...] = ()
    slice_s: float = 0.01
    delay_s: float = 0.001
    failing_writes: float = 0.0
    lost_s: float = 60.0

    @property
    def config(self) -> Config:
        return Config(
            workers=str(self.workers),
            servers=len(self.parcels),
            epochs=self.schedule.epochs,
            batch_size=self.schedule.batch_size,
            slices=self.schedule.num_slices,
            checkpoint_every=self.checkpoint_every,
            max_quarantined=len(self.bad),
            max_failures=0,
            heartbeat_s=0.1,
            suspect_s=0.3,
            lost_s=self.lost_s,
        )

    @property
    def spec(self) -> Spec:
        return Spec(
            framework="symbols",
            entries=ENTRIES,
            optimizer=SGD(lr=1.0, clip_norm=1.0 if self.clips else None),
            metrics=(),
            num_records=self.schedule.num_records,
            num_test=self.schedule.num_test,
            data_signature="",
        )


@dataclass(frozen=True)
class Fault:
    """After ``after`` events of the run, something happens to the ``pick``-th of those it can happen to."""

    after: int
    kind: str
    pick: int = 0
    seconds: float = 0.0


class Link:
    """One direction of a connection: first in, first out, each message after a delay of its own."""

    def __init__(self, world: World, deliver: Callable[[Any], None]) -> None:
        self._world, self._deliver = world, deliver
        self._on_way: deque[Any] = deque()
        self._last_s = 0.0

    def send(self, message: Any) -> None:
        world = self._world
        delay_s = world.shape.delay_s * world.rng.random() * (10 if world.rng.random() < 0.05 else 1)
        self._last_s = max(self._last_s, world.now_s + delay_s)
        self._on_way.append(message)
        world.at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        if self._on_way:
            self._deliver(self._on_way.popleft())

    def lose_some(self) -> None:
        """The sender was killed: the last messages may not have left its memory yet."""
        for _ in range(self._world.rng.randint(0, len(self._on_way))):
            self._on_way.pop()


CLOSED = object()
"""The last thing that comes over a connection."""


class Timer:
    """Calls ``due`` when a state machine says that time matters to it."""

    def __init__(self, world: World, due: Callable[[], None]) -> None:
        self._world, self._due = world, due
        self._at_s: float | None = None
        self._last_s, self._turns = -1.0, 0

    def set(self, at_s: float | None) -> None:
        if at_s is not None and at_s != self._at_s:
            self._world.at(max(at_s, self._world.now_s), lambda: self._ring(at_s))
        self._at_s = at_s

    def _ring(self, at_s: float) -> None:
        if at_s != self._at_s:
            return
        now_s = self._world.now_s
        self._turns = self._turns + 1 if now_s == self._last_s else 0
        self._last_s, self._at_s = now_s, None
        assert self._turns < MOST_TURNS_AT_ONCE, "a timer that is due again and again: the process spins"
        self._due()


# --- the worker ----------------------------------------------------------------------------------

Body = Generator[float | None, None, Any]


@dataclass
class Position:
    version: int
    shares: tuple[Share, ...]
    cut: bool
    finish: bool


@dataclass
class _Server:
    """One server, as a worker sees it."""

    link: Link
    parcels: range
    inbox: deque[tuple[Any, Any]] = field(default_factory=deque)
    version: int = -1
    frames: dict[int, Any] = field(default_factory=dict)
    orders: Version | None = None

    def take(self, message: Version, frame: Any) -> None:
        if message.version != self.version:
            self.version, self.frames, self.orders = message.version, {}, None
        self.frames[message.parcel] = frame
        if message.parcel == 0:
            self.orders = message

    @property
    def complete(self) -> bool:
        return len(self.frames) == len(self.parcels)


class SimClient:
    """``elasticflow_ps.client.ParameterServers``."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker, self._world = worker, worker.world
        self._truth = self._world.truth
        self._state: list[Any] = list(self._truth.model(0))
        self._held = -1
        self.servers = [self._connect(number) for number in range(len(self._world.servers))]

    def _connect(self, number: int) -> _Server:
        server, world = self._world.servers[number], self._world
        name, down = self._worker.name, Link(self._world, lambda message: self._take(number, message))
        up = Link(world, lambda message: server.receive(name, message, down))
        return _Server(up, self._truth.of_server(number))

    def _take(self, number: int, message: Any) -> None:
        self.servers[number].inbox.append(message)
        self._worker.notice()

    @property
    def has_news(self) -> bool:
        return any(server.inbox for server in self.servers)

    def catch_up(self) -> Generator[None, None, Position]:
        wanted = -1
        while True:
            for server in self.servers:
                server.version = -1
                server.frames = {}
                server.link.send((Pull(version=wanted, have=self._held), None))
            if (yield from self._collect(wanted)):
                wanted = min(server.version for server in self.servers)
                if all(server.version == wanted for server in self.servers):
                    return self._adopt()
            else:
                wanted = -1

    def _collect(self, wanted: int) -> Generator[None, None, bool]:
        open_ = set(range(len(self.servers)))
        intact = True
        while open_:
            while not self.has_news:
                yield
            for number, server in enumerate(self.servers):
                while server.inbox:
                    message, frame = server.inbox.popleft()
                    if isinstance(message, Version):
                        if number in open_ and wanted in (-1, message.version):
                            server.take(message, frame)
                            if server.complete:
                                open_.remove(number)
                    elif isinstance(message, Gone):
                        intact = False
                        open_.discard(number)
                    elif isinstance(message, Uninitialised):
                        for parcel, place in enumerate(server.parcels):
                            server.link.send((Initial(parcel=parcel), self._state[place]))
        return intact

    def _adopt(self) -> Position:
        for server in self.servers:
            for parcel, place in enumerate(server.parcels):
                frame = server.frames.pop(parcel)
                if frame is not None:
                    self._state[place] = frame
        orders = self.servers[0].orders
        assert orders is not None
        self._held = orders.version
        assert tuple(self._state) == self._truth.model(self._held), "a worker has a mixture of versions"
        return Position(orders.version, orders.shares, orders.cut, orders.finish)

    def push(self, at: Position, node: Node, *, lr: float | None, slice_s: float, last: bool) -> None:
        for server in self.servers:
            for parcel, place in enumerate(server.parcels):
                total = self._truth.total(at.version, node, place)
                push = Push(
                    tick=at.version,
                    parcel=parcel,
                    level=node.level,
                    index=node.index,
                    empty=total is None,
                    lr=lr,
                    cut=at.cut,
                    finish=at.finish,
                    slice_s=slice_s,
                    pull=last and parcel == 0,
                )
                server.link.send((push, total))

    def ask(self, at: Position) -> None:
        for server in self.servers:
            server.link.send((Pull(version=at.version + 1, have=at.version), None))

    def wait(self) -> Generator[None, None, Position | Compute | None]:
        while True:
            while not (self.has_news or self._worker.orders):
                yield
            heard = self.has_news
            for server in self.servers:
                while server.inbox:
                    message, frame = server.inbox.popleft()
                    if isinstance(message, Version):
                        server.take(message, frame)
                    elif isinstance(message, Compute):
                        return message
                    elif isinstance(message, Gone):
                        return (yield from self.catch_up())
            if all(server.complete and server.version == self._held + 1 for server in self.servers):
                return self._adopt()
            if not heard:
                return None

    def close(self) -> None:
        for server in self.servers:
            server.link.send((CLOSED, None))


class SimWorker:
    """``elasticflow.worker.worker``: its process, and ``Worker``."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.frozen, self.slowness = True, False, 1.0
        self.orders: deque[Any] = deque()
        self.tick = -1
        self._master = Link(world, world.master.handle)
        self._client: SimClient | None = None
        self._body: Body = self._life()
        self._waits, self._due = False, False
        self._beating = False
        self._faulty: set[int] = set()
        self._done: set[int] = set()
        self._excluded: set[int] = set()
        self._draining = self._quit = False
        self._wake()

    # --- the process ---

    def _wake(self) -> None:
        """Goes on where the body yielded."""
        if not self.alive:
            return
        if self.frozen:
            self._due = True
            return
        self._waits = self._due = False
        try:
            pause_s = next(self._body)
        except StopIteration:
            self._gone(killed=False, text="ended with exit code 0")
            return
        if pause_s is None:
            self._waits = True
        else:
            self.world.at(self.world.now_s + pause_s, self._wake)

    def notice(self) -> None:
        """Something has come."""
        if self._waits:
            self._wake()

    def hear(self, message: Any) -> None:
        """The master's link."""
        self.orders.append(message)
        self.notice()

    def kill(self) -> None:
        """kill -9: what was pushed to one server may have left, what was pushed to the next not."""
        if not self.alive:
            return
        if self._client:
            for server in self._client.servers:
                server.link.lose_some()
            self._client.close()
        self._master.lose_some()
        self._gone(killed=True, text="was killed by SIGKILL")

    def freeze(self, seconds: float) -> None:
        self.frozen = True
        self.world.at(self.world.now_s + seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        if self._due:
            self._wake()

    def _gone(self, *, killed: bool, text: str) -> None:
        """The backend sees the process end: after its last words, or, if it was killed, at any time."""
        self.alive = False
        (Link(self.world, self.world.master.handle) if killed else self._master).send(
            ms.ExitedEvent(self.name, not killed, text)
        )

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self.frozen:
            self._master.send(Heartbeat(name=self.name, tick=self.tick, slice_s=self._slice_s))
        self.world.at(self.world.now_s + self.world.config.heartbeat_s, self._beat)

    # --- worker.py ---

    @property
    def _slice_s(self) -> float:
        return self.world.shape.slice_s * self.slowness

    def _life(self) -> Body:
        yield self.world.rng.uniform(0.01, 0.2)
        self._master.send(Join(name=self.name, role="worker", host="", pid=0, spec=self.world.shape.spec))
        self._beat()
        while True:
            while not self.orders:
                yield None
            if isinstance(order := self.orders.popleft(), (Assignment, Quit)):
                break
        if isinstance(order, Quit):
            return
        self._excluded = {each.row for each in order.excluded}
        self._client = SimClient(self)
        yield from self._train(self._client)
        self._client.close()
        self._master.send(Leaving(name=self.name))

    def _train(self, client: SimClient) -> Body:
        position = yield from client.catch_up()
        self._master.send(Ready(name=self.name))
        while not self._quit and position.version < self.world.shape.schedule.total_ticks:
            shares = [share for share in position.shares if share.worker == self.name]
            mine = range(shares[0].first, shares[0].stop) if shares else range(0)
            if self._draining and not mine:
                break
            following = yield from self._do_tick(client, position, mine)
            if following is None or position.finish and following.version == position.version + 1:
                break
            position = following

    def _do_tick(self, client: SimClient, at: Position, mine: range) -> Body:
        self.tick = at.version
        work = self.world.shape.schedule.at(self.tick)
        self._faulty.clear()
        self._done.clear()
        yield from self._compute(client, at, work, mine)
        while not self._quit:
            event = yield from client.wait()
            if isinstance(event, Position):
                return event
            if isinstance(event, Compute):
                if event.tick == self.tick:
                    slices = [n for n in event.slices if n not in self._faulty | self._done]
                    yield from self._compute(client, at, work, slices)
            else:
                while self.orders:
                    yield from self._obey(self.orders.popleft(), client, at, work)
                if self._draining and not mine and not self._faulty:
                    return None
        return None

    def _obey(self, message: Any, client: SimClient, at: Position, work: Work) -> Body:
        if isinstance(message, Quit):
            self._quit = True
        elif isinstance(message, Drain):
            self._draining = True
        elif isinstance(message, Quarantine):
            self._excluded = {each.row for each in message.excluded}
            again = sorted(self._faulty)
            self._faulty.clear()
            yield from self._compute(client, at, work, again)
        elif isinstance(message, Attempt) and message.tick == self.tick and message.slice not in self._faulty:
            yield from self._compute(client, at, work, [message.slice])

    def _compute(self, client: SimClient, at: Position, work: Work, numbers: Iterable[int]) -> Body:
        lr = learning_rate(self.world.shape.schedule, work.tick)
        nodes = nodes_of(tuple(numbers))
        asked = False
        for node in nodes:
            self.world.note_computed(work.tick, node)
            yield self._slice_s * (node.stop - node.first)
            parts = self._parts(work, node)
            self._done.update(number for part in parts for number in range(part.first, part.stop))
            for number, part in enumerate(parts):
                asked = node is nodes[-1] and number == len(parts) - 1
                client.push(at, part, lr=lr, slice_s=self._slice_s, last=asked)
        if not asked:
            client.ask(at)

    def _parts(self, work: Work, node: Node) -> list[Node]:
        """The node, or those of its parts that can be computed."""
        parts: SliceTree[None] = SliceTree(self.world.shape.schedule.num_slices, lambda left, right: None)
        for number in range(node.first, node.stop):
            if (work.tick, number) in self.world.shape.bad and row_of(work, number) not in self._excluded:
                self._faulty.add(number)
                rows = (row_of(work, number),)
                self._master.send(
                    Faulty(name=self.name, tick=work.tick, slice=number, rows=rows, text="", traceback="")
                )
            else:
                parts.add(Node(0, number), None)
        return [part for part, _ in parts.drain()]


def row_of(work: Work, number: int) -> int:
    """The row that makes a bad slice bad."""
    return work.tick * 1000 + number


# --- the parameter server ------------------------------------------------------------------------


class SimServer:
    """``elasticflow_ps.server.Server``, and its process."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.name = world, number, f"server-{number}"
        self.values: dict[int, dict[int, int]] = {}
        self.state: ss.ServerState | None = None
        self._places = world.truth.of_server(number)
        self._peers: dict[str, Link] = {}
        self._master = Link(world, world.master.handle)
        self._norms: dict[int, dict[int, tuple[tuple[int, int | None], ...]]] = {}
        self._timer = Timer(world, self._turn)
        self._written_s = 0.0
        self._told_s, self._told_version = 0.0, -1
        world.at(world.now_s + world.rng.uniform(0.01, 0.1), self._join)

    def _join(self) -> None:
        self._master.send(Join(name=self.name, role="server", host="", pid=0))
        self._beat()

    def _beat(self) -> None:
        """Heartbeats come from a thread of their own, as often as workers'; a few of them do here."""
        self._master.send(Heartbeat(name=self.name, tick=0))
        self.world.at(self.world.now_s + self.world.config.lost_s / 3, self._beat)

    def hear(self, message: Any) -> None:
        if isinstance(message, Assignment):
            self._begin(message)
        elif self.state is None:
            return
        elif isinstance(message, Plan):
            self._handle(ss.PlanEvent(message.number, message.shares))
        elif isinstance(message, (Cut, Finish)):
            self._handle(ss.CutEvent() if isinstance(message, Cut) else ss.FinishEvent())
        elif isinstance(message, Settled):
            self._handle(ss.SettledEvent(message.tick))
        self._turn()

    def _begin(self, assignment: Assignment) -> None:
        shape = self.world.shape
        start = shape.start[1] if shape.start else None
        self.state = ss.ServerState(
            schedule=assignment.schedule,
            num_parcels=len(self._places),
            combine=combine,
            leads=self.number == 0,
            clips=shape.clips,
            start=start,
            cut_every_steps=assignment.cut_every_steps,
        )
        if start is not None:
            model = self.world.truth.model(start)
            self.values[start] = {parcel: model[place] for parcel, place in enumerate(self._places)}
        self._master.send(Ready(name=self.name))

    # --- what comes ---

    def receive(self, peer: str, message: tuple[Any, Any], down: Link) -> None:
        """From a worker, or from another server."""
        head, value = message
        if head is CLOSED:
            if self._peers.pop(peer, None):
                self._handle(ss.ClosedEvent(peer))
                if self.number == 0:
                    self._master.send(Lost(name=self.name, worker=peer))
            return self._turn()
        if peer not in self._peers:
            self._peers[peer] = down
            self._handle(ss.OpenedEvent(peer))
        if isinstance(head, Push):
            self._handle(ss.PushEvent(peer, head, value))
        elif isinstance(head, Pull):
            self._handle(ss.PullEvent(peer, head))
        elif isinstance(head, Initial):
            self._handle(ss.InitialEvent(head.parcel, value))
        self._turn()

    def _turn(self) -> None:
        """The end of each turn of the loop."""
        if self.state is None:
            return
        self._handle(ss.TimeEvent())
        self._tell_progress()
        due_s = self.state.next_due_s()
        if self.number == 0 and self._told_version < self.state.version:
            due_s = min(due_s or float("inf"), self._told_s + PROGRESS_S)
        self._timer.set(due_s)

    def _tell_progress(self) -> None:
        assert self.state is not None
        now_s, version = self.world.now_s, self.state.version
        news = self.number == 0 and self._told_version < version
        if news and (now_s >= self._told_s + PROGRESS_S or self.state.finished):
            self._told_s, self._told_version = now_s, version
            self._master.send(Progress(name=self.name, version=version, last=self.state.finished))

    # --- what is done ---

    def _handle(self, event: ss.Event) -> None:
        assert self.state is not None
        for action in self.state.handle(event, self.world.now_s):
            self._act(action)

    def _act(self, action: ss.Action) -> None:
        if isinstance(action, ss.ServeAction):
            self._serve(action)
        elif isinstance(action, ss.ApplyAction):
            self._apply(action)
        elif isinstance(action, ss.VersionAction):
            self._complete(action)
        elif isinstance(action, ss.ComputeAction):
            self._hand_out(action)
        elif isinstance(action, ss.GoneAction):
            self._send(action.worker, Gone(latest=action.latest))
        elif isinstance(action, ss.InitialiseAction):
            self.values.setdefault(0, {})[action.parcel] = action.value
        elif isinstance(action, ss.AskInitialAction):
            self._send(action.worker, Uninitialised())
        elif isinstance(action, ss.NormsAction):
            norms = tuple(zip(self._places, action.roots, strict=True))
            Link(self.world, lambda norms: self.world.servers[0].collect_norms(*norms)).send(
                (self.number, action.tick, norms)
            )
        else:
            raise AssertionError(f"a message of an honest worker was dropped: {action}")

    def _send(self, worker: str, message: Any, value: Any = None) -> None:
        if worker in self._peers:
            self._peers[worker].send((message, value))

    def _serve(self, action: ss.ServeAction) -> None:
        value = self.values[action.version][action.parcel]
        expected = self.world.truth.model(action.version)[self._places[action.parcel]]
        assert value == expected, f"{self.name} serves another version {action.version}"
        orders = action.orders or ss.Orders()
        if action.orders:
            self.world.note_orders(action.version, orders)
        message = Version(
            version=action.version,
            parcel=action.parcel,
            same=action.same,
            plan=orders.plan,
            shares=orders.shares,
            cut=orders.cut,
            finish=orders.finish,
        )
        self._send(action.worker, message, None if action.same else value)

    def _apply(self, action: ss.ApplyAction) -> None:
        truth, place = self.world.truth, self._places[action.parcel]
        assert action.root == truth.total(action.tick, truth.top, place), f"{self.name} made another sum"
        after = self.values.setdefault(action.tick + 1, {})
        assert action.parcel not in after, f"{self.name} applied tick {action.tick} twice"
        before = self.values[action.tick][action.parcel]
        if action.root is None or truth.schedule.evaluates(action.tick):
            after[action.parcel] = before
        else:
            after[action.parcel] = updated(before, action.root, action.lr, action.norm)

    def _complete(self, action: ss.VersionAction) -> None:
        whole = [self.values[action.version].get(parcel) for parcel in range(len(self._places))]
        model = self.world.truth.model(action.version)
        assert whole == [model[place] for place in self._places], f"{self.name} made another {action}"
        for old in [version for version in self.values if version < action.version - 1]:
            del self.values[old]
        self.world.note_version(self.number, action)
        if action.cut:
            begun_s = max(self.world.now_s, self._written_s)
            self._written_s = begun_s + self.world.rng.uniform(0.0, 0.1)
            self.world.at(self._written_s, lambda: self._written(action))

    def _written(self, action: ss.VersionAction) -> None:
        fails = not action.last and self.world.rng.random() < self.world.shape.failing_writes
        part = None if fails else Part(f"{self.name}-{action.version}.h5", 1, {})
        error = "the disk is full" if fails else ""
        self._master.send(
            Written(name=self.name, tick=action.version, last=action.last, part=part, error=error)
        )
        self._turn()

    def _hand_out(self, action: ss.ComputeAction) -> None:
        self.world.note_asked(self.name, action)
        self._send(action.worker, Compute(tick=action.tick, slices=action.slices))

    def collect_norms(self, server: int, tick: int, norms: tuple[tuple[int, int | None], ...]) -> None:
        """Server 0: adds up, and tells all."""
        known = self._norms.setdefault(tick, {})
        known[server] = norms
        if len(known) == len(self.world.servers):
            norm = norm_of([pair for pairs in known.values() for pair in pairs])
            del self._norms[tick]
            for other in self.world.servers[1:]:
                Link(self.world, other.hear_clip).send(Clip(tick=tick, norm=norm))
            self.hear_clip(Clip(tick=tick, norm=norm))

    def hear_clip(self, clip: Clip) -> None:
        self._handle(ss.ClipEvent(clip.tick, clip.norm))
        self._turn()


# --- the master ----------------------------------------------------------------------------------


class SimMaster:
    """``elasticflow.master.server.Master``."""

    def __init__(self, world: World) -> None:
        self.world = world
        start = world.shape.start
        self.state = ms.MasterState(world.config, restored=(*start, ()) if start else None)
        self.end: ms.EndAction | None = None
        self.notes: list[str] = []
        self._links: dict[str, Link] = {}
        self._timer = Timer(world, lambda: self.handle(ms.TimeEvent()))

    def start(self) -> None:
        self._do(self.state.start(self.world.now_s))

    def handle(self, event: ms.Event) -> None:
        self._handle(event)
        self._handle(ms.TimeEvent())
        self._timer.set(self.state.next_time_s())

    def _handle(self, event: ms.Event) -> None:
        if self.end is None:
            self._do(self.state.handle(event, self.world.now_s))

    def _do(self, actions: list[ms.Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: ms.Action) -> None:
        if isinstance(action, ms.StartAction):
            self._links[action.name] = self.world.start_process(action.name, action.role)
        elif isinstance(action, ms.KillAction):
            self.world.kill(action.name)
        elif isinstance(action, ms.PlanAction):
            for name in action.servers:
                self._tell(name, Plan(number=action.number, shares=action.shares))
        elif isinstance(action, ms.CommitAction):
            self._commit(action)
        elif isinstance(action, ms.NoteAction):
            self.notes.append(action.text)
        elif isinstance(action, ms.EndAction):
            self.end = action
        elif isinstance(action, (ms.QuarantineAction, ms.AttemptAction)):
            for name in action.names:
                self._tell(name, _message(action))
        else:
            self._tell(action.name, _message(action))

    def _tell(self, name: str, message: Any) -> None:
        self._links[name].send(message)

    def _commit(self, action: ms.CommitAction) -> None:
        files = sorted(f"{server.name}-{action.tick}.h5" for server in self.world.servers)
        assert sorted(part.file for part in action.parts) == files, "a checkpoint of other parts"
        fails = not action.last and self.world.rng.random() < self.world.shape.failing_writes
        if not fails:
            self.world.note_commit(action)
        self._handle(ms.CommittedEvent(action.tick, action.last, "no space left" if fails else ""))


def _message(action: ms.Action) -> Any:
    """The message that an action sends."""
    if isinstance(action, ms.AssignAction):
        return action.assignment
    if isinstance(action, ms.DrainAction):
        return Drain()
    if isinstance(action, ms.CutAction):
        return Finish() if action.finish else Cut()
    if isinstance(action, ms.SettledAction):
        return Settled(tick=action.tick)
    if isinstance(action, ms.QuarantineAction):
        return Quarantine(excluded=action.excluded)
    if isinstance(action, ms.AttemptAction):
        return Attempt(tick=action.tick, slice=action.slice)
    assert isinstance(action, ms.QuitAction)
    return Quit(reason=action.reason)


# --- all of it -----------------------------------------------------------------------------------


class World:
    """One history: a shape, faults, and a seed for all that is left to chance."""

    def __init__(self, shape: Shape, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.shape, self.config = shape, shape.config
        self.all_faults = sorted(faults, key=lambda fault: fault.after)
        self._faults = deque(self.all_faults)
        self.rng = random.Random(seed)
        self.truth: Truth = truth_of(shape.schedule, shape.parcels, shape.clips)
        self.now_s = 0.0
        self.num_events = self.num_computed = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._orders: dict[int, ss.Orders] = {}
        self._versions: dict[int, ss.VersionAction] = {}
        self._newest = [shape.start[1] if shape.start else 0] * len(shape.parcels)
        self.committed: list[int] = []
        self._asked: dict[tuple[str, str, int, int], int] = {}
        self.workers: dict[str, SimWorker] = {}
        self.servers: list[SimServer] = []
        self.master = SimMaster(self)

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_s, self._number, do))

    def run(self) -> ms.EndAction:
        """Runs until the master says that the run is over, and checks what it is left with."""
        self.master.start()
        while self.master.end is None:
            assert self.num_events < MOST_EVENTS, f"no end in sight at {self.now_s:.1f} s: {self._where()}"
            self.now_s, _, do = heapq.heappop(self._queue)
            self.num_events += 1
            do()
            while self._faults and self._faults[0].after <= self.num_events:
                self._strike(self._faults.popleft())
        self._check_end(self.master.end)
        return self.master.end

    def _where(self) -> str:
        versions = {server.name: server.state.version for server in self.servers if server.state}
        ticks = {worker.name: worker.tick for worker in self.workers.values() if worker.alive}
        return f"servers at {versions}, workers at {ticks}, notes {self.master.notes[-5:]}"

    # --- processes ---

    def start_process(self, name: str, role: str) -> Link:
        process: SimWorker | SimServer
        if role == "server":
            process = SimServer(self, len(self.servers))
            self.servers.append(process)
        else:
            process = self.workers[name] = SimWorker(self, name)
        return Link(self, process.hear)

    def kill(self, name: str) -> None:
        self.workers[name].kill()

    def _strike(self, fault: Fault) -> None:
        alive = [worker for worker in self.workers.values() if worker.alive]
        if fault.kind == "scale":
            self.master.handle(ms.ScaleEvent(1 + fault.pick % self.shape.schedule.num_slices))
        elif fault.kind == "stop":
            self.master.handle(ms.StopEvent("asked to stop"))
        elif fault.kind == "cut":
            self.servers[0].hear(Cut())
        elif alive:
            victim = alive[fault.pick % len(alive)]
            if fault.kind == "kill":
                victim.kill()
            elif fault.kind == "freeze" and not victim.frozen:
                victim.freeze(fault.seconds)
            elif fault.kind == "slow":
                victim.slowness = 1 + 2 * fault.seconds

    # --- what must hold at all times ---

    def note_orders(self, version: int, orders: ss.Orders) -> None:
        assert self._orders.setdefault(version, orders) == orders, f"two orders for version {version}"

    def note_version(self, server: int, action: ss.VersionAction) -> None:
        self._newest[server] += 1
        assert action.version == self._newest[server], "a version is left out, or comes twice"
        assert max(self._newest) - min(self._newest) <= 1, "servers are more than a step apart"
        seen = self._versions.setdefault(action.version, action)
        assert seen == action, f"servers disagree: {seen} and {action}"
        ordered = self._orders.get(action.version - 1)
        if action.cut and not action.last:
            assert ordered is not None and ordered.cut, f"nobody ordered {action}"
            assert not self.shape.schedule.evaluates(action.version), "a cut before an evaluation"

    def note_commit(self, action: ms.CommitAction) -> None:
        assert self._versions[action.tick].cut, f"committed {action.tick}, which was not cut"
        steps = [self.shape.schedule.steps_before(tick) for tick in (*self.committed, action.tick)]
        assert steps == sorted(set(steps)), f"checkpoints of steps {steps}"
        self.committed.append(action.tick)

    def note_computed(self, tick: int, node: Node) -> None:
        self.num_computed += node.stop - node.first

    def note_asked(self, server: str, action: ss.ComputeAction) -> None:
        for number in action.slices:
            key = server, action.worker, action.tick, number
            self._asked[key] = self._asked.get(key, 0) + 1

    @property
    def most_asked(self) -> int:
        """How often one server asked one worker for one slice of a tick."""
        return max(self._asked.values(), default=0)

    def _check_end(self, end: ms.EndAction) -> None:
        total = self.shape.schedule.total_ticks
        assert end.state is not ms.RunState.FAILED, end.text
        last = self.committed[-1] if self.committed else None
        if end.state is ms.RunState.FINISHED:
            assert last == total, f"finished, with {last} of {total} committed"
            assert set(self._newest) == {total}
        elif last is not None:
            assert self._versions[last].last and set(self._newest) == {last}
