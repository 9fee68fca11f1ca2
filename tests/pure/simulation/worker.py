"""A worker's process: ``elasticflow.worker.worker`` and ``elasticflow_ps.client`` around ClientState.

What these do one after the other is a generator here: it yields seconds while it computes, and None while
it waits for news.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from elasticflow.step.schedule import Work
from elasticflow.step.slices import Node, SliceTree, nodes_of
from elasticflow.wire.messages import (
    Assignment,
    Attempt,
    Beat,
    Departing,
    Drain,
    Excluded,
    Faulty,
    Heartbeat,
    Hello,
    Initial,
    Inspect,
    Inspected,
    Join,
    Leaving,
    Look,
    Lost,
    Pull,
    Push,
    Quarantine,
    Quit,
    Ready,
    Welcome,
)  # fmt: skip
from elasticflow.worker.strategy import Event, Overdue, Position, Severed
from elasticflow_ps import client_state as cs

from .member import Member
from .network import CLOSED, Connection
from .truth import learning_rate

if TYPE_CHECKING:
    from .world import World

Body = Generator[float | None, None, Any]
NO_ARRAYS = ()
"""What comes with a message that carries none."""


class Client:
    """``elasticflow_ps.client.ParameterServers``."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker, self._world, self._truth = worker, worker.world, worker.world.truth
        self.state: list[int] = list(self._truth.model(0))
        self._row: list[tuple[str, int, Connection]] = []
        """Of each server with chunks: name, place, connection."""
        self._inbox: deque[tuple[int, Any]] = deque()
        self._client: cs.ClientState
        self._whole = True
        """Without updates of the tick in work."""

    def connect(self, assignment: Assignment) -> None:
        self.disconnect()
        infos = [(place, info) for place, info in enumerate(assignment.servers) if info.chunks]
        for number, (place, info) in enumerate(infos):
            connection = self._world.connect(
                self._worker, info.name, self._taker(number), assignment.generation
            )
            connection.up.send(Hello(name=self._worker.name, generation=assignment.generation, nonce=b""))
            self._row.append((info.name, place, connection))
        self._client = cs.ClientState(
            [len(self._truth.of_place(place)) for place, _ in infos],
            assignment.schedule,
            has_first=not assignment.in_memory and assignment.restore_step is None,
        )

    def _taker(self, number: int) -> Any:
        inbox, worker = self._inbox, self._worker

        def take(connection: Connection, message: Any) -> None:
            inbox.append((number, message))
            worker.notice()

        return take

    def disconnect(self, *, lossy: bool = True) -> None:
        for _, _, connection in self._row:
            connection.close(self._worker, lossy=lossy)
        self._row, self._inbox = [], deque()

    def wait(self) -> Generator[None, None, Event]:
        while True:
            if self._inbox:
                event = self._hear(*self._inbox.popleft())
                if event:
                    return event
            elif self._worker.orders:
                return None
            else:
                yield None

    def _hear(self, number: int, message: Any) -> Event:
        if message is CLOSED:
            return self._handle(cs.LinkClosedEvent(number))
        head, arrays = message
        if isinstance(head, Welcome):
            self._row[number][2].greet()
            return self._handle(cs.GreetedEvent(number))
        return self._handle(cs.ReceivedEvent(number, head, arrays))

    def _handle(self, event: cs.Event) -> Event:
        result: Event = None
        for action in self._client.handle(event):
            assert result is None, "something comes after what concerns the worker"
            result = self._act(action)
        return result

    def _act(self, action: cs.Action) -> Event:
        if isinstance(action, cs.AdoptAction):
            return self._adopt(action)
        if isinstance(action, cs.RestoreAction):
            return self._fill(action.frames)
        if isinstance(action, cs.ComputeSlicesAction):
            return Overdue(action.tick, action.slices, action.careful)
        name, place, connection = self._row[action.server]
        if isinstance(action, cs.PlaceAction):
            self.state[self._truth.of_place(place)[action.parcel]] = action.frames
            return None
        if isinstance(action, cs.PullAction):
            self._send(connection, Pull(version=action.version, have=action.have))
        elif isinstance(action, cs.InitialAction):
            for parcel, number in enumerate(self._truth.of_place(place)):
                self._send(connection, Initial(parcel=parcel), self.state[number])
        elif isinstance(action, cs.SeveredAction):
            self.disconnect()
            return Severed(name)
        else:
            raise AssertionError(f"{self._worker.name} drops a message of {name}: {action.reason}")
        return None

    def _fill(self, row: list[dict[int, Any]]) -> None:
        self._whole = not any(number for bases in self._client.bases for number in bases.values())
        for (_, place, _), frames in zip(self._row, row, strict=True):
            for parcel, number in enumerate(self._truth.of_place(place)):
                if frames[parcel] != NO_ARRAYS:
                    self.state[number] = frames[parcel]

    def _adopt(self, action: cs.AdoptAction) -> Position:
        self._fill(action.frames)
        orders, version = action.orders, action.version
        self._check(version)
        return Position(
            version=version,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
        )

    def _check(self, version: int) -> None:
        """That the state is this version, unless others' updates are said to be in it."""
        whole = tuple(self.state) == self._truth.model(version)
        assert whole or not self._whole, f"{self._worker.name} has a mixture"

    def recall(self, at: Position, slices: list[int], *, rest: bool = False) -> bool:
        return self._handle(cs.OrderEvent(at.version, tuple(slices), rest)) is not None

    def push(self, at: Position, node: Node, *, lr: float | None, slice_s: float, last: bool) -> None:
        world = self._world
        self._check(at.version)
        for (_, place, connection), bases in zip(self._row, self._client.bases, strict=True):
            for parcel, number in enumerate(self._truth.of_place(place)):
                total = self._truth.total(at.version, node, number)
                push = Push(
                    tick=at.version,
                    parcel=parcel,
                    level=node.level,
                    index=node.index,
                    empty=total is None,
                    lr=lr,
                    cut=at.cut,
                    snapshot=at.snapshot,
                    finish=at.finish,
                    slice_s=slice_s,
                    pull=last and parcel == 0,
                    base=bases[parcel],
                )
                self._send(connection, push, total)
                if world.duplicates and world.rng.random() < 0.1:
                    self._send(connection, push, total)

    def ask(self, at: Position) -> None:
        if self._client.ordered:
            return
        for _, _, connection in self._row:
            self._send(connection, Pull(version=at.version + 1, have=at.version))

    def _send(self, connection: Connection, head: Any, arrays: Any = NO_ARRAYS) -> None:
        connection.up.send((head, arrays))


class SimWorker(Member):
    """``elasticflow.worker.worker.main``. slowness: in multiples of the time a slice takes others."""

    role = "worker"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.slowness = 1.0
        self.orders: deque[Any] = deque()
        self.was_ready = False
        self.tick, self.generation = -1, 0
        self._client = Client(self)
        self._position: Position | None = None
        self._severed: Severed | None = None
        self._excluded: dict[int, Excluded] = {}
        self._faulty: dict[int, Faulty] = {}
        self._careful: set[int] = set()
        self._tries = 0
        self._inspects: tuple[int, ...] = ()
        self._done: set[int] = set()
        self._draining = self._leaving = self._ended = False
        self._body, self._waits = self._life(), False
        self._looks: deque[Look] = deque()
        self.start_heartbeats()
        self._wake()

    def __repr__(self) -> str:
        severed = " severed" if self._severed else ""
        return f"{super().__repr__()} at {self.tick} of {self.generation}{severed}"

    # --- the process -----------------------------------------------------------------------------

    def _wake(self) -> None:
        """Goes on where the body yielded."""
        self._waits = False
        try:
            pause_s = next(self._body)
        except StopIteration:
            return self.leave()
        if pause_s is None:
            self._waits = True
            while self._looks:
                super().answer_look(self._looks.popleft())
        else:
            self.later(pause_s, lambda: self.in_main(self._wake))

    def notice(self) -> None:
        """Something has come."""
        self.in_main(lambda: self._wake() if self._waits else None)

    def answer_look(self, look: Look) -> None:
        self._looks.append(look)
        if self._waits:
            super().answer_look(self._looks.popleft())

    def obey(self, message: Any) -> None:
        self.orders.append(message)
        self.notice()

    def warn(self) -> None:
        """SIGTERM, of which a thread of its own hears at once."""
        self.run(lambda: self.send(Departing(name=self.name, reason="preempted")))

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            name=self.name,
            tick=self.tick,
            generation=self.generation,
            slice_s=self._slice_s,
            tries=self._tries,
        )

    @property
    def _slice_s(self) -> float:
        return self.world.shape.slice_s * self.slowness

    # --- worker.py -------------------------------------------------------------------------------

    def _life(self) -> Body:
        yield self.clock.rng.uniform(0.01, 0.2)
        answer = yield from self._join()
        if isinstance(answer, Quit):
            return
        self._exclude(answer)
        self._take_up(answer)
        while not self._leaving:
            yield from self._catch_up()
            while self._position and not self._leaving:
                yield from self._do_tick(self._position)
        self._client.disconnect(lossy=False)
        self.send(Leaving(name=self.name, ended=self.generation if self._ended else 0))

    def _join(self) -> Generator[None, None, Assignment | Quit]:
        while True:
            self._say_who()
            answer = None
            while answer is None:
                answer = next((m for m in self.orders if isinstance(m, (Assignment, Quit, Beat))), None)
                if answer is None:
                    yield None
            self.orders.remove(answer)
            if not isinstance(answer, Beat):
                return answer

    def _say_who(self) -> None:
        excluded = tuple(self._excluded.values())
        self.send(
            Join(
                name=self.name,
                role="worker",
                host="",
                pid=1,
                spec=self.world.spec,
                excluded=excluded,
                rehearsed_s=self.world.shape.slice_s,
            )
        )

    def _take_up(self, assignment: Assignment) -> None:
        if not assignment.in_memory and assignment.restore_step is None and self.was_ready:
            self._client.state = list(self.world.truth.model(0))
        self._part()
        self._severed = None
        self.generation = assignment.generation
        self._client.connect(assignment)

    def _part(self) -> None:
        self._position = None
        self._inspects = ()
        self._faulty.clear()
        self._careful.clear()
        self._done.clear()

    def _lose(self, event: Severed) -> None:
        self._part()
        self._severed = event
        self.send(Lost(name=self.name, member=event.member))

    def _catch_up(self) -> Body:
        while not self._leaving and self._position is None:
            event = yield from self._client.wait()
            if isinstance(event, Position):
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif event is None:
                while self.orders:
                    yield from self._obey(self.orders.popleft())
        if self._position:
            self.was_ready = True
            self._say_ready()

    def _say_ready(self) -> None:
        self.send(Ready(name=self.name, generation=self.generation))

    def _enter(self, position: Position) -> None:
        self._position = position
        self._faulty.clear()
        self._careful.clear()
        self._done.clear()

    def _do_tick(self, position: Position) -> Body:
        schedule = self.world.shape.schedule
        mine = _slices_of(position, self.name)
        if position.version >= schedule.total_ticks or self._draining and not mine:
            self._leaving, self._ended = True, position.version >= schedule.total_ticks
            return
        self.tick = position.version
        work = schedule.at(self.tick)
        yield from self._compute(position, work, mine)
        while not self._leaving and self._position is position:
            event = yield from self._client.wait()
            if isinstance(event, Position):
                self._leaving = self._ended = position.finish and event.version == position.version + 1
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif isinstance(event, Overdue):
                if self._inspects:
                    self._inspect(position)
                elif event.tick == self.tick:
                    self._careful.update(event.careful)
                    fresh = [n for n in event.slices if n not in self._faulty and n not in self._done]
                    if fresh:
                        yield from self._compute(position, work, fresh)
                    elif schedule.applies_slices(self.tick):
                        self._client.ask(position)
            else:
                while self.orders:
                    yield from self._obey(self.orders.popleft())
                if self._draining and not mine and not self._faulty:
                    self._leaving = True

    def _obey(self, message: Any) -> Body:
        position = self._position
        if isinstance(message, Quit):
            self._leaving = True
        elif isinstance(message, Drain):
            self._draining = True
        elif isinstance(message, Assignment):
            self._exclude(message)
            if message.generation >= self.generation + (self._severed is None):
                self._take_up(message)
        elif isinstance(message, Quarantine):
            self._exclude(message)
            again = sorted(self._faulty.keys() | self._careful - self._done)
            self._faulty.clear()
            if position:
                yield from self._compute_more(position, again)
        elif isinstance(message, Attempt):
            if position and message.tick == position.version and message.slice not in self._faulty:
                self._careful.update([message.slice] if message.careful else [])
                yield from self._compute_more(position, [message.slice])
        elif isinstance(message, Inspect):
            if position and message.tick == position.version:
                self._inspects = message.slices
                if self._client.recall(position, list(message.slices)):
                    self._inspect(position)
        elif isinstance(message, Beat):
            self._repeat()

    def _inspect(self, position: Position) -> None:
        slices, self._inspects = self._inspects, ()
        self.send(
            Inspected(name=self.name, tick=position.version, slice=slices[0], parameter="w", cost="nan")
        )

    def _exclude(self, message: Assignment | Quarantine) -> None:
        self._excluded.update({each.row: each for each in message.excluded})

    def _repeat(self) -> None:
        self._say_who()
        if self._severed:
            self.send(Lost(name=self.name, member=self._severed.member))
        elif self._position:
            self._say_ready()
        for faulty in list(self._faulty.values()):
            self.send(faulty)

    def _compute_more(self, position: Position, numbers: list[int]) -> Body:
        if not numbers:
            self._client.ask(position)
        elif self._client.recall(position, numbers):
            yield from self._compute(position, self.world.shape.schedule.at(position.version), numbers)

    def _compute(self, position: Position, work: Work, numbers: Iterable[int]) -> Body:
        lr = learning_rate(self.world.shape.schedule, work.tick)
        slices, later = tuple(numbers), ()
        if self.world.shape.schedule.applies_slices(work.tick):
            slices, later = slices[:1], slices[1:]
        slices = yield from self._survived(work, slices)
        nodes = nodes_of(slices)
        asked = False
        for node in nodes:
            self.world.num_computed += node.stop - node.first
            if work.tick == self.world.shape.hangs_at:
                self.hang(float("inf"))
                self.world.num_hung, self.world.laws.spares_workers = self.world.num_hung + 1, False
            yield self._slice_s * (node.stop - node.first)
            parts = self._parts(work, node) if self.world.shape.bad else [node]
            for number, part in enumerate(parts):
                self._done.update(range(part.first, part.stop))
                asked = node is nodes[-1] and not later and number == len(parts) - 1
                self._client.push(position, part, lr=lr, slice_s=self._slice_s, last=asked)
        if later:
            self._client.recall(position, list(later), rest=True)
        elif not asked:
            self._client.ask(position)

    def _survived(
        self, work: Work, slices: tuple[int, ...]
    ) -> Generator[float | None, None, tuple[int, ...]]:
        """Those of the slices of which nobody dies, if care is taken; this process dies, if it is not."""
        if careful := self._careful.intersection(slices):
            for _ in careful:
                self._tries += 1
                yield self._slice_s * self.clock.rng.choice((2, 20))
                self._tries += 1
        passed = []
        for number in slices:
            row = row_of(work, number)
            if (work.tick, number) not in self.world.shape.deadly or row in self._excluded:
                passed.append(number)
            elif number in careful:
                self._faulty[number] = Faulty(
                    name=self.name,
                    tick=work.tick,
                    slice=number,
                    rows=(row,),
                    text="",
                    traceback="",
                    dies=True,
                )
                self.send(self._faulty[number])
            else:
                yield self._slice_s
                self.world.laws.died_of(work.tick, number)
                self.kill()
                yield None
        return tuple(passed)

    def _parts(self, work: Work, node: Node) -> list[Node]:
        """The node, or those of its parts that can be computed."""
        parts: SliceTree[None] = SliceTree(self.world.shape.schedule.num_slices, lambda left, right: None)
        for number in range(node.first, node.stop):
            row = row_of(work, number)
            if (work.tick, number) in self.world.shape.bad and row not in self._excluded:
                self._faulty[number] = Faulty(
                    name=self.name, tick=work.tick, slice=number, rows=(row,), text="", traceback=""
                )
                self.send(self._faulty[number])
            else:
                parts.add(Node(0, number), None)
        return [part for part, _ in parts.drain()]


def row_of(work: Work, number: int) -> int:
    """The row that makes a bad slice bad."""
    return work.tick * 1000 + number


def _slices_of(position: Position, name: str) -> range:
    for share in position.shares:
        if share.worker == name:
            return range(share.first, share.stop)
    return range(0)
