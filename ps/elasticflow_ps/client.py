"""A worker's way to the parameter servers."""

from __future__ import annotations

from collections import deque

import numpy as np
import zmq

from elasticflow.errors import ProtocolError
from elasticflow.keys import MemberKeys
from elasticflow.layout import Layout, Vector
from elasticflow.messages import (
    Assignment,
    Compute,
    FromServer,
    Gone,
    Initial,
    Pull,
    Push,
    Uninitialised,
    Version,
)  # fmt: skip
from elasticflow.settings import MemberSettings
from elasticflow.slices import Node
from elasticflow.strategies import Event, Overdue, Position, Strategy
from elasticflow.transport import Context, DataLink
from elasticflow_ps.parcels import Parcel, parcels_of


class _Server:
    """One server, as this worker sees it."""

    def __init__(self, link: DataLink, parcels: list[Parcel]) -> None:
        self.link = link
        self.parcels = parcels
        self.version = -1
        """The version whose parcels are being collected."""
        self.frames: dict[int, list[memoryview]] = {}
        self.orders: Version | None = None

    def take(self, message: Version, frames: list[memoryview]) -> None:
        if message.version != self.version:
            self.version, self.frames, self.orders = message.version, {}, None
        self.frames[message.parcel] = frames
        if message.parcel == 0:
            self.orders = message

    @property
    def complete(self) -> bool:
        return len(self.frames) == len(self.parcels)


class ParameterServers(Strategy):
    """Pushes sums of gradients to the servers that hold their chunks, and pulls versions.

    The last push to each server of a tick asks for the next version, which saves a message.
    """

    def __init__(
        self,
        settings: MemberSettings,
        keys: MemberKeys,
        assignment: Assignment,
        state: Vector,
        wake_fd: int,
    ) -> None:
        self._name = settings.name
        self._schedule = assignment.schedule
        self._layout: Layout = state.layout
        self._state = state
        self._held = -1
        """The version in ``state``."""
        self._spares: list[Vector] = []
        self._sending: deque[tuple[Vector, list[zmq.MessageTracker]]] = deque()
        self._poller, self._servers_poller = zmq.Poller(), zmq.Poller()
        self._poller.register(wake_fd, zmq.POLLIN)
        self._context: Context = zmq.Context()
        self._servers: list[_Server] = []
        for info in assignment.servers:
            link = DataLink(self._context, keys, info.endpoint, settings.encrypt_data)
            self._servers.append(_Server(link, parcels_of(self._layout, info.chunks)))
            for poller in (self._poller, self._servers_poller):
                poller.register(link.socket, zmq.POLLIN)
                poller.register(link.monitor, zmq.POLLIN)
        for server in self._servers:
            server.link.greet(settings.name)

    # --- versions --------------------------------------------------------------------------------

    def catch_up(self) -> Position:
        """Asks all servers, and meets them at the oldest version that any of them has as its newest."""
        wanted = -1
        while True:
            for server in self._servers:
                server.version = -1
                server.frames = {}
                server.link.send(Pull(version=wanted, have=self._held))
            if self._collect(wanted):
                wanted = min(server.version for server in self._servers)
                if all(server.version == wanted for server in self._servers):
                    return self._adopt()
            else:
                wanted = -1

    def _collect(self, wanted: int) -> bool:
        """Waits for a whole version from every server; False if some are past ``wanted``."""
        open_ = set(range(len(self._servers)))
        intact = True
        while open_:
            self._servers_poller.poll()
            for number, server in enumerate(self._servers):
                while received := self._receive(server):
                    message, frames = received
                    right = isinstance(message, Version) and (wanted < 0 or message.version == wanted)
                    if isinstance(message, Version) and right and number in open_:
                        server.take(message, frames)
                        if server.complete:
                            open_.discard(number)
                    elif isinstance(message, Gone):
                        intact = False
                        open_.discard(number)
                    elif isinstance(message, Uninitialised):
                        self._initialise(server)
        return intact

    def _initialise(self, server: _Server) -> None:
        for parcel in server.parcels:
            values = [span.view(self._state).copy() for span in parcel.state]
            server.link.send(Initial(parcel=parcel.number), values)

    def _adopt(self) -> Position:
        """Puts the collected version into the state."""
        for server in self._servers:
            for parcel in server.parcels:
                frames = server.frames.pop(parcel.number)
                for span, frame in zip(parcel.state, frames, strict=False):  # no frames: the same as before
                    np.copyto(span.view(self._state), np.frombuffer(frame, span.dtype))
        orders = self._servers[0].orders
        assert orders is not None
        self._held = orders.version
        return Position(version=orders.version, shares=orders.shares, cut=orders.cut, finish=orders.finish)

    def _receive(self, server: _Server) -> tuple[FromServer, list[memoryview]] | None:
        received = server.link.receive()
        if received is None and server.link.is_closed():
            raise ProtocolError(f"the connection to the parameter server at {server.link.endpoint} is lost")
        return received

    # --- pushes ----------------------------------------------------------------------------------

    def spare(self) -> Vector:
        while self._sending and all(tracker.done for tracker in self._sending[0][1]):
            self._spares.append(self._sending.popleft()[0])
        return self._spares.pop() if self._spares else Vector(self._layout)

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
        trackers: list[zmq.MessageTracker] = []
        for server in self._servers:
            for parcel in server.parcels:
                push = Push(
                    tick=position.version,
                    parcel=parcel.number,
                    level=node.level,
                    index=node.index,
                    empty=total is None,
                    lr=lr,
                    cut=position.cut,
                    finish=position.finish,
                    slice_s=slice_s,
                    pull=last and parcel is server.parcels[0],
                )
                tracker = server.link.send(push, [] if total is None else parcel.views(total, kind))
                if tracker:
                    trackers.append(tracker)
        if total is not None:
            self._sending.append((total, trackers))

    def ask(self, position: Position) -> None:
        for server in self._servers:
            server.link.send(Pull(version=position.version + 1, have=position.version))

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self) -> Event:
        while True:
            woken = self._poller.poll()
            for server in self._servers:
                while received := self._receive(server):
                    message, frames = received
                    if isinstance(message, Version):
                        server.take(message, frames)
                    elif isinstance(message, Compute):
                        return Overdue(message.tick, message.slices)
                    elif isinstance(message, Gone):
                        return self.catch_up()
            if all(s.complete and s.version == self._held + 1 for s in self._servers):
                return self._adopt()
            sockets = {source for source, _ in woken}
            if not any(s.link.socket in sockets for s in self._servers):
                return None

    def close(self) -> None:
        for server in self._servers:
            server.link.close()
        self._context.term()
