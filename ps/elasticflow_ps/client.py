"""A worker's way to the parameter servers: sockets and arrays around ClientState."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from weakref import WeakKeyDictionary

import zmq

from elasticflow.process import poison
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Layout, Rule, Vector, paged_vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.schedule import Schedule
from elasticflow.step.slices import Node
from elasticflow.wire.data import DataLink
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import (
    Assignment,
    Initial,
    Lend,
    Mapped,
    Pull,
    Push,
    RowsRead,
)  # fmt: skip
from elasticflow.wire.sockets import Context
from elasticflow.worker.strategy import Event, Overdue, Position, Severed, Strategy
from elasticflow_ps import client_state as cs
from elasticflow_ps import native
from elasticflow_ps.compression import compression_of
from elasticflow_ps.loans import Block, try_block
from elasticflow_ps.outgoing import Pushing, Routes
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.reading import RowReading
from elasticflow_ps.remote import Arrived, Remote
from elasticflow_ps.store import Tracker


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

    def __init__(self, settings: MemberSettings, keys: MemberKeys, state: Vector, wake_fd: int) -> None:
        self._name, self._encrypt, self._keys = settings.name, settings.encrypt_data, keys
        self._layout: Layout = state.layout
        self._dense = [entry for entry in self._layout.entries if entry.rule is not Rule.ROWS]
        self._state = state
        self._wake_fd = wake_fd
        self._spares: list[Vector] = []
        self._sending: deque[tuple[Vector, list[Tracker]]] = deque()
        self._settings, self._compression = settings, compression_of(settings)
        self._lends = settings.shared_memory and self._compression.lends
        self._overlaps = settings.overlap
        self._blocks: WeakKeyDictionary[Vector, Block] = WeakKeyDictionary()
        """Where vectors lie that servers may read."""
        native.set_threads(settings.threads)  # for copies of what has arrived
        self._context: Context = zmq.Context()
        self._remotes: list[Remote] = []
        self._routes = Routes(self._layout, [])
        self._poller = self._new_poller()
        self._schedule: Schedule
        self._client: cs.ClientState
        self._questions = count(1)
        """Never the same number twice: answers over another connection may come late."""
        self._reading = RowReading(self._layout, [], wake_fd, self._questions)
        self._dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped + sum(remote.link.dropped for remote in self._remotes)

    # --- connections -----------------------------------------------------------------------------

    def connect(self, assignment: Assignment) -> None:
        self._disconnect()
        self._compression = compression_of(self._settings)
        infos = [info for info in assignment.servers if info.chunks]
        for info in infos:
            link = DataLink(self._context, self._keys, info.endpoint, self._encrypt)
            self._remotes.append(Remote(info, link, self._layout, self._compression))
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
            link.hello(self._name, assignment.generation)
        self._routes = Routes(self._layout, self._remotes)
        self._reading = RowReading(self._layout, self._remotes, self._wake_fd, self._questions)
        self._schedule = assignment.schedule
        self._client = cs.ClientState(
            [len(remote.parcels) for remote in self._remotes],
            assignment.schedule,
            has_first=not assignment.in_memory and assignment.restore_step is None,
        )

    def _disconnect(self) -> None:
        """Lets go of all servers at once, and of what has not been sent yet."""
        self._dropped = self.dropped
        remotes, self._remotes = self._remotes, []
        for remote in remotes:
            remote.link.close(linger_ms=0)
        self._routes = Routes(self._layout, [])
        self._reading = RowReading(self._layout, [], self._wake_fd, self._questions)
        self._sending.clear()  # who still sends or reads these may; they are not filled again
        self._poller = self._new_poller()

    def _new_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        return poller

    def close(self) -> None:
        for remote in self._remotes:
            remote.link.close()
        self._context.term()

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self) -> Event:
        while True:
            early = any(remote.early for remote in self._remotes)
            woken = {source for source, _ in self._poller.poll(0 if early else None)}
            for number, remote in enumerate(self._remotes):
                sources = (remote.link.socket, remote.link.monitor)
                if woken.isdisjoint(sources) and not remote.early:
                    continue
                if event := self._hear(number, remote):
                    return event
                if remote.link.is_closed():
                    return self._handle(cs.LinkClosedEvent(number))
            if self._wake_fd in woken:
                return None

    def _hear(self, number: int, remote: Remote) -> Event:
        """Takes in what has come from a server, up to the first thing that matters to the worker."""
        while received := remote.receive():
            message, frames = received
            if isinstance(message, Lend):
                remote.borrow(message)
            elif isinstance(message, Mapped):
                remote.mapped.add(message.number)
            elif isinstance(message, RowsRead):
                self._reading.take(remote, message, frames)
            elif remote.is_late(message):
                continue
            elif event := self._handle(cs.ReceivedEvent(number, message, remote.arrived(message, frames))):
                return event
        if remote.link.greeted and not remote.greeted:
            remote.greeted = True
            for block in self._blocks.values():
                remote.link.send(block.lend())
            self._handle(cs.GreetedEvent(number))
        return None

    def _handle(self, event: cs.Event) -> Event:
        """At most one of the actions concerns the worker, and it is the last."""
        result: Event = None
        for action in self._client.handle(event):
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
        remote = self._remotes[action.server]
        if isinstance(action, cs.PlaceAction):
            self._place(remote.parcels[action.parcel], action.frames)
            return None
        if isinstance(action, cs.PullAction):
            remote.asked = remote.link.sent
            remote.link.send(Pull(version=action.version, have=action.have))
        elif isinstance(action, cs.InitialAction):
            for parcel in remote.parcels:
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
        )

    def _fill(self, frames: Sequence[Mapping[int, Arrived | tuple[()]]]) -> None:
        """Puts a version into the state: of each server, by parcel."""
        for remote, arrived, bases in zip(self._remotes, frames, self._client.bases, strict=True):
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
        taken = arrived.arrays if self._compression.packs_versions else mine
        arrived.watched.compare(taken, parcel.state, self._name)

    def read(
        self, table: int, keys: Keys, urgent: Callable[[], bool], *, early: bool = False
    ) -> Callable[[], Values]:
        return self._reading.ask(table, self._client.held + early, keys, urgent)

    def recall(self, position: Position, slices: Sequence[int], *, rest: bool = False) -> bool:
        return self._handle(cs.OrderEvent(position.version, tuple(slices), rest)) is not None

    # --- pushes ----------------------------------------------------------------------------------

    def spare(self) -> Vector:
        while self._sending and all(tracker.done for tracker in self._sending[0][1]):
            self._spares.append(self._sending.popleft()[0])
        if not self._spares:
            return self._new_vector()
        vector = self._spares.pop()
        if poison.ON:
            poison.poison(*vector.tensors(self._dense))  # and not the padding, which is to stay zero
        return vector

    def _new_vector(self) -> Vector:
        block = try_block(self._layout.num_bytes) if self._lends else None
        if block is None:
            return paged_vector(self._layout)
        vector = Vector(self._layout, block.memory, own_pages=True)
        self._blocks[vector] = block
        for remote in self._remotes:
            if remote.greeted:
                remote.link.send(block.lend())
        return vector

    def give_back(self, vector: Vector) -> None:
        self._spares.append(vector)

    @property
    def rounding(self) -> Callable[[Vector], None] | None:
        return self._compression.rounding

    @property
    def streams(self) -> bool:
        return self._overlaps and len(self._routes.all) > 1

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
        tick, client = position.version, self._client
        at_once = self._schedule.applies_slices(tick)
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
        )

        def sent(trackers: list[Tracker], lent: bool) -> None:
            for total in parts[:1]:
                used_up = [_UsedUp(client, tick, at_once=at_once)] if lent else []
                self._sending.append((total, [*trackers, *used_up]))
            self._spares.extend(parts[1:])

        block = self._blocks.get(parts[0]) if parts else None
        return Pushing(
            self._routes,
            self._schedule.at(tick).kind,
            template,
            parts,
            block=block.number if block else -1,
            asks=last,
            sent=sent,
            compression=self._compression,
        )

    def ask(self, position: Position) -> None:
        if self._client.ordered:
            return  # not now: what was asked for before that is on its way
        for remote in self._remotes:
            remote.link.send(Pull(version=position.version + 1, have=position.version))
