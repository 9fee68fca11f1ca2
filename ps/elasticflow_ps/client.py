"""A worker's way to the parameter servers: sockets and arrays around ClientState."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

import numpy as np
import zmq

from elasticflow.keys import MemberKeys
from elasticflow.layout import Layout, Vector
from elasticflow.messages import (
    Assignment,
    FromServer,
    Initial,
    Lend,
    Mapped,
    Pull,
    Push,
    ServerInfo,
    Version,
)  # fmt: skip
from elasticflow.schedule import Schedule
from elasticflow.settings import MemberSettings
from elasticflow.slices import Node
from elasticflow.strategies import Event, Overdue, Position, Severed, Strategy
from elasticflow.transport import Context, DataLink
from elasticflow_ps import client_state as cs
from elasticflow_ps.loans import Block, Bytes, borrow
from elasticflow_ps.neighbours import FRAME
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.store import Tracker

Arrays = list[Bytes]


class _Server:
    """One server, as this worker sees it.

    mapped: the numbers of this worker's vectors that it reads where they lie.
    """

    def __init__(self, info: ServerInfo, link: DataLink, layout: Layout) -> None:
        self.name, self.link = info.name, link
        self.greeted = False
        self.parcels: list[Parcel] = parcels_of(layout, info.chunks)
        self.mapped: set[int] = set()
        self._sizes = [[span.num_bytes for span in parcel.state] for parcel in self.parcels]
        self._blocks: dict[int, Bytes] = {}

    def borrow(self, lend: Lend) -> None:
        """Maps a block of the server's, if it is of this host."""
        with suppress(OSError):
            self._blocks[lend.number] = borrow(lend, writable=False)
            self.link.send(Mapped(number=lend.number))

    def arrays(self, message: FromServer, frames: Sequence[memoryview]) -> Arrays | None:
        """What came with a message, as bytes; None if that is not what it needs."""
        if not isinstance(message, Version) or message.same:
            return None if frames else []
        if not 0 <= message.parcel < len(self.parcels):
            return None
        sizes = self._sizes[message.parcel]
        rest = iter(frames)
        places = message.lent or [FRAME] * len(frames)
        try:
            arrays = [
                np.frombuffer(next(rest), np.uint8) if place == FRAME else self._lent(*place, size)
                for place, size in zip(places, sizes, strict=True)
            ]
        except (KeyError, StopIteration, ValueError):
            return None
        return arrays if [array.nbytes for array in arrays] == sizes and not any(True for _ in rest) else None

    def _lent(self, block: int, start: int, num_bytes: int) -> Bytes:
        return self._blocks[block][start : start + num_bytes]


class _Adopted:
    """A ``Tracker``: what was pushed for a tick is used up when the next version is there."""

    def __init__(self, client: cs.ClientState, tick: int) -> None:
        self._client, self._tick = client, tick

    @property
    def done(self) -> bool:
        return self._client.held > self._tick


class ParameterServers(Strategy):
    """Pushes sums of gradients to the servers that hold their chunks, and pulls versions.

    The last push to each server of a tick asks for the next version, which saves a message. Servers
    without chunks only stand by, and are left alone. With those of its own host a worker exchanges arrays
    through memory: see ``elasticflow_ps.neighbours``.
    """

    def __init__(self, settings: MemberSettings, keys: MemberKeys, state: Vector, wake_fd: int) -> None:
        self._name, self._encrypt, self._keys = settings.name, settings.encrypt_data, keys
        self._layout: Layout = state.layout
        self._state = state
        self._wake_fd = wake_fd
        self._spares: list[Vector] = []
        self._sending: deque[tuple[Vector, list[Tracker]]] = deque()
        self._lends = settings.shared_memory
        self._blocks: WeakKeyDictionary[Vector, Block] = WeakKeyDictionary()
        """Where vectors lie that servers may read."""
        self._context: Context = zmq.Context()
        self._servers: list[_Server] = []
        self._poller = self._new_poller()
        self._schedule: Schedule
        self._client: cs.ClientState
        self._dropped = 0

    @property
    def dropped(self) -> int:
        return self._dropped + sum(server.link.dropped for server in self._servers)

    # --- connections -----------------------------------------------------------------------------

    def connect(self, assignment: Assignment) -> None:
        self._disconnect()
        infos = [info for info in assignment.servers if info.chunks]
        for info in infos:
            link = DataLink(self._context, self._keys, info.endpoint, self._encrypt)
            self._servers.append(_Server(info, link, self._layout))
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
            link.hello(self._name, assignment.generation)
        self._schedule = assignment.schedule
        self._client = cs.ClientState(
            [len(server.parcels) for server in self._servers],
            assignment.schedule,
            has_first=not assignment.in_memory and assignment.restore_step is None,
        )

    def _disconnect(self) -> None:
        """Lets go of all servers at once, and of what has not been sent yet."""
        self._dropped = self.dropped
        servers, self._servers = self._servers, []
        for server in servers:
            server.link.close(linger_ms=0)
        self._sending.clear()  # who still sends or reads these may; they are not filled again
        self._poller = self._new_poller()

    def _new_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        return poller

    def close(self) -> None:
        for server in self._servers:
            server.link.close()
        self._context.term()

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self) -> Event:
        while True:
            woken = {source for source, _ in self._poller.poll()}
            for number, server in enumerate(self._servers):
                if server.link.socket not in woken and server.link.monitor not in woken:
                    continue
                if event := self._hear(number, server):
                    return event
                if server.link.is_closed():
                    return self._handle(cs.ClosedEvent(number))
            if self._wake_fd in woken:
                return None

    def _hear(self, number: int, server: _Server) -> Event:
        """Takes in what has come from a server, up to the first thing that matters to the worker."""
        while received := server.link.receive():
            message, frames = received
            if isinstance(message, Lend):
                server.borrow(message)
            elif isinstance(message, Mapped):
                server.mapped.add(message.number)
            elif event := self._handle(cs.ReceivedEvent(number, message, server.arrays(message, frames))):
                return event
        if server.link.greeted and not server.greeted:
            server.greeted = True
            for block in self._blocks.values():
                server.link.send(block.lend())
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
        if isinstance(action, cs.ComputeAction):
            return Overdue(action.tick, action.slices)
        server = self._servers[action.server]
        if isinstance(action, cs.PullAction):
            server.link.send(Pull(version=action.version, have=action.have))
        elif isinstance(action, cs.InitialAction):
            for parcel in server.parcels:
                values = [span.view(self._state).copy() for span in parcel.state]
                server.link.send(Initial(parcel=parcel.number), values)
        elif isinstance(action, cs.SeveredAction):
            self._disconnect()
            return Severed(server.name)
        else:
            self._dropped += 1
        return None

    def _adopt(self, action: cs.AdoptAction) -> Position:
        for server, arrays in zip(self._servers, action.frames, strict=True):
            for parcel in server.parcels:
                for span, array in zip(parcel.state, arrays[parcel.number], strict=False):  # none: the same
                    np.copyto(span.view(self._state), array.view(span.dtype))
        orders = action.orders
        return Position(
            version=action.version,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
        )

    # --- pushes ----------------------------------------------------------------------------------

    def spare(self) -> Vector:
        while self._sending and all(tracker.done for tracker in self._sending[0][1]):
            self._spares.append(self._sending.popleft()[0])
        return self._spares.pop() if self._spares else self._new_vector()

    def _new_vector(self) -> Vector:
        if not self._lends:
            return Vector(self._layout)
        block = Block(self._layout.num_bytes)
        vector = Vector(self._layout, block.memory)
        self._blocks[vector] = block
        for server in self._servers:
            if server.greeted:
                server.link.send(block.lend())
        return vector

    def give_back(self, vector: Vector) -> None:
        self._spares.append(vector)

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
        kind = self._schedule.at(position.version).kind
        trackers: list[Tracker] = [_Adopted(self._client, position.version)]
        block = self._blocks.get(total) if total else None
        for server in self._servers:
            lent = block.number if block and block.number in server.mapped else -1
            for parcel in server.parcels:
                push = Push(
                    tick=position.version,
                    parcel=parcel.number,
                    level=node.level,
                    index=node.index,
                    empty=total is None,
                    lr=lr,
                    cut=position.cut,
                    snapshot=position.snapshot,
                    finish=position.finish,
                    slice_s=slice_s,
                    pull=last and parcel is server.parcels[0],
                    lent=lent,
                )
                arrays = parcel.views(total, kind) if total and lent < 0 else []
                tracker = server.link.send(push, arrays)
                if tracker:
                    trackers.append(tracker)
        if total is not None:
            self._sending.append((total, trackers))

    def ask(self, position: Position) -> None:
        for server in self._servers:
            server.link.send(Pull(version=position.version + 1, have=position.version))
