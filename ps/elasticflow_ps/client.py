"""A worker's way to the parameter servers: arrays and messages around ClientState."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import zmq

from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.slices import Node
from elasticflow.training.advice import Advice, Question
from elasticflow.wire.messages import Advise, Assignment, Initial, Lend, Mapped, Pull, Push, RowsRead
from elasticflow.wire.sending import Tracker
from elasticflow.wire.sockets import Context, Socket
from elasticflow.worker.strategy import Event, Overdue, Position, Severed, Strategy, unheeded
from elasticflow_ps import client_state as cs
from elasticflow_ps import native
from elasticflow_ps.compression import compression_of
from elasticflow_ps.outgoing import Pushing
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.remote import Arrived, Remote
from elasticflow_ps.remote_row import RemoteRow
from elasticflow_ps.vector_pool import VectorPool


class _UsedUp:
    """A ``Tracker``: what was pushed for a tick is used up when the next version is there.

    at_once: or when there is any answer to what the servers were asked later.
    """

    def __init__(self, client: cs.ClientState, tick: int, *, at_once: bool) -> None:
        self._client, self._tick, self._at_once, self._fills = client, tick, at_once, client.fills

    @property
    def done(self) -> bool:
        client = self._client
        return client.held > self._tick or (self._at_once and client.fills > self._fills)


class ParameterServers(Strategy):
    """Pushes sums of gradients to the servers that hold their chunks, and pulls versions.

    The push of a tick's last node asks each server for the next version, which saves a message. Servers
    without chunks only stand by, and are left alone. With those of its own host a worker exchanges arrays
    through memory: see ``elasticflow_ps.neighbours``.
    """

    def __init__(
        self,
        settings: MemberSettings,
        state: Vector,
        wake_fd: int,
        put: Callable[[int, int, int], None] = unheeded,
    ) -> None:
        self._settings, self._state, self._wake_fd, self._put = settings, state, wake_fd, put
        self._compression = compression_of(settings)
        """Of the present connections: it may keep what their servers were not pushed."""
        lends = settings.shared_memory and self._compression.lends
        self._pool = VectorPool(state.layout, lends=lends)
        native.set_threads(settings.threads)  # for copies of what has arrived
        self._context: Context = zmq.Context()
        self._now: RemoteRow | None = None
        """The last ones; without servers, once they are severed."""
        self._questions = count(1)
        self._dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped + (self._now.dropped if self._now else 0)

    @property
    def _row(self) -> RemoteRow:
        """Where there must be some, or have been."""
        assert self._now
        return self._now

    @property
    def _remotes(self) -> Sequence[Remote]:
        return self._now.remotes if self._now else ()

    # --- connections -----------------------------------------------------------------------------

    def connect(self, assignment: Assignment) -> None:
        self._disconnect()
        self._compression = compression_of(self._settings)
        self._now = RemoteRow(
            self._context,
            self._settings,
            self._state.layout,
            self._compression,
            self._wake_fd,
            self._questions,
            assignment,
        )

    def _disconnect(self) -> None:
        self._dropped = self.dropped
        if self._now:
            self._now.sever()
        self._pool.forget_sent()

    def close(self) -> None:
        if self._now:
            self._now.close()
        self._context.term()

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self) -> Event:
        while True:
            woken = self._now.wait() if self._now else self._wait_for_a_row()
            for number, remote in enumerate(self._remotes):
                if woken.isdisjoint(remote.sources) and not remote.has_more:
                    continue
                if event := self._hear(number, remote):
                    return event
                # Only now: what a server had said before counts.
                if remote.link.is_closed():
                    return self._handle(cs.LinkClosedEvent(number))
            if self._wake_fd in woken:
                return None

    def _wait_for_a_row(self) -> set[Socket | int]:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        return {source for source, _ in poller.poll()}

    def _hear(self, number: int, remote: Remote) -> Event:
        """Takes in what has come from a server, up to the first thing that matters to the worker."""
        while received := remote.receive():
            message, frames = received
            if isinstance(message, Lend):
                remote.borrow(message)
            elif isinstance(message, Mapped):
                remote.mapped.add(message.number)
            elif isinstance(message, RowsRead):
                self._row.reading.take(remote, message, frames)
            elif remote.is_late(message):
                continue
            elif event := self._handle(cs.ReceivedEvent(number, message, remote.arrived(message, frames))):
                return event
        if remote.link.greeted and not remote.greeted:
            remote.greeted = True
            self._pool.lend_all(remote)
            self._handle(cs.GreetedEvent(number))
        return None

    def _handle(self, event: cs.Event) -> Event:
        """At most one of the actions concerns the worker, and it is the last."""
        result: Event = None
        for action in self._row.state.handle(event):
            result = self._act(action)
        return result

    def _act(self, action: cs.Action) -> Event:
        if isinstance(action, cs.AdoptAction):
            return self._adopt(action)
        if isinstance(action, cs.RestoreAction):
            self._fill(action.frames)
            return None
        if isinstance(action, cs.ComputeSlicesAction):
            return Overdue(action.tick, action.slices, action.careful)
        if isinstance(action, cs.AskProgramAction):
            return action.question
        remote = self._row.remotes[action.server]
        if isinstance(action, cs.PlaceAction):
            self._place(remote.parcels[action.parcel], action.frames)
            return None
        if isinstance(action, cs.PullAction):
            remote.asked = remote.link.sent
            remote.link.send(Pull(version=action.version, have=action.have))
        elif isinstance(action, cs.InitialAction):
            for parcel in remote.parcels:
                # A version may be put into the state before these have left.
                values = [span.view(self._state).copy() for span in parcel.state]
                remote.link.send(Initial(parcel=parcel.number), values)
        elif isinstance(action, cs.SeveredAction):
            self._disconnect()
            return Severed(remote.name)
        else:
            self._dropped += 1
        return None

    def _adopt(self, action: cs.AdoptAction) -> Position:
        self._fill(action.frames)
        orders = action.orders
        return Position(
            version=action.version,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
            tuning=orders.tuning,
            ends=orders.ends,
            pause=orders.pause,
        )

    def _fill(self, frames: Sequence[Mapping[int, Arrived | tuple[()]]]) -> None:
        """Puts a version into the state: of each server, by parcel."""
        now = self._row
        for remote, arrived, bases in zip(now.remotes, frames, now.state.bases, strict=True):
            remote.bases = bases
            for parcel in remote.parcels:
                self._place(parcel, arrived[parcel.number])

    def _place(self, parcel: Parcel, arrived: Arrived | tuple[()]) -> None:
        """Puts a parcel into the state, unless it is there. Raises BrokenError if it is not what was lent."""
        if not arrived or not arrived.arrays:
            return
        mine = [span.view(self._state) for span in parcel.state]
        for span, array, view in zip(parcel.state, arrived.arrays, mine, strict=True):
            self._compression.unpack(span, array, view)
            self._put(span.group, span.start, span.stop)
        taken = arrived.arrays if self._compression.packs_versions else mine
        arrived.watched.compare(taken, parcel.state, self._settings.name)

    def read(
        self, table: int, keys: Keys, urgent: Callable[[], bool], *, early: bool = False
    ) -> Callable[[], Values]:
        now = self._row
        return now.reading.ask(table, now.state.held + early, keys, urgent)

    def hurry(self) -> None:
        if self._now:
            self._now.reading.hurry()

    def recall(self, position: Position, slices: Sequence[int], *, rest: bool = False) -> bool:
        return self._handle(cs.OrderEvent(position.version, tuple(slices), rest)) is not None

    def advise(self, question: Question, advice: Advice) -> None:
        self._row.remotes[0].link.send(Advise(tick=question.tick, advice=advice))

    # --- pushes ----------------------------------------------------------------------------------

    def spare(self) -> Vector:
        return self._pool.spare(self._remotes)

    def give_back(self, vector: Vector) -> None:
        self._pool.give_back(vector)

    @property
    def rounding(self) -> Callable[[Vector], None] | None:
        return self._compression.rounding

    @property
    def streams(self) -> bool:
        return self._settings.overlap and bool(self._now) and len(self._row.routes.all) > 1

    def push(
        self,
        position: Position,
        node: Node,
        total: Vector | None,
        *,
        lr: float | None,
        slice_s: float,
        last: bool,
    ) -> None:
        parts = () if total is None else (total,)
        self.begin(position, node, parts, lr=lr, slice_s=slice_s, last=last).finish(slice_s)

    def begin(
        self,
        position: Position,
        node: Node,
        parts: Sequence[Vector],
        *,
        lr: float | None,
        slice_s: float,
        last: bool,
    ) -> Pushing:
        tick, now = position.version, self._row
        at_once, work = now.schedule.applies_slices(tick), now.schedule.at(tick)
        template = Push(
            tick=tick,
            parcel=0,
            level=node.level,
            index=node.index,
            empty=not parts,
            lr=lr,
            cut=position.cut,
            snapshot=position.snapshot,
            finish=position.finish,
            slice_s=slice_s,
            pause=position.pause,
        )

        def sent(trackers: list[Tracker], lent: bool) -> None:
            for total in parts[:1]:
                used_up = [_UsedUp(now.state, tick, at_once=at_once)] if lent else []
                self._pool.sent(total, [*trackers, *used_up])
            # The sum was made in the first: nothing of the others leaves.
            self._pool.give_back(*parts[1:])

        return Pushing(
            now.routes,
            work,
            template,
            parts,
            block=self._pool.block_of(parts[0]) if parts else -1,
            asks=last,
            sent=sent,
            compression=self._compression,
        )

    def ask(self, position: Position) -> None:
        if self._row.state.ordered:
            return  # not now: what was asked for before that is on its way
        for remote in self._row.remotes:
            remote.link.send(Pull(version=position.version + 1, have=position.version))
