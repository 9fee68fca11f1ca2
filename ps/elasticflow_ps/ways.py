"""Whom a server talks to in one generation: those who connect to it, and the servers it connects to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from elasticflow.errors import ProtocolError
from elasticflow.process.network import is_here
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array
from elasticflow.wire.data import Closed, DataLink, DataListener, Opened, Peer
from elasticflow.wire.keys import Pass
from elasticflow.wire.messages import Assignment, FromServer, ServerInfo, ToServer
from elasticflow.wire.seal import Guard
from elasticflow.wire.sending import Tracker
from elasticflow.wire.sockets import Context, Socket

TURN = 64
"""So many messages of one server are read before others get their turn."""


def pass_to(info: ServerInfo, name: str, assignment: Assignment) -> Pass:
    """A member's way to a server, as the master has told it. Raises ProtocolError if it has not."""
    if info.name not in assignment.passes:
        raise ProtocolError(
            f"generation {assignment.generation} begins without a way from {name} to {info.name}"
        )
    return Pass(name, assignment.generation, assignment.passes[info.name])


def guard_to(endpoint: str, settings: MemberSettings) -> Guard:
    """What is guarded of what goes there. Within a host nobody but root is in between."""
    guard = Guard.between_hosts(encrypt=settings.encrypt_data, authenticate=settings.authenticate_data)
    address = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return Guard.HEADERS if guard is Guard.ARRAYS and is_here(address) else guard


class ServerLink:
    """The way to another server. What is said before it has answered waits; what carries arrays may not."""

    def __init__(self, context: Context, way: Pass, info: ServerInfo, settings: MemberSettings) -> None:
        self.name = info.name
        self._link = DataLink(context, way, info.endpoint, guard_to(info.endpoint, settings))
        self._waiting: deque[ToServer] = deque()

    @property
    def sources(self) -> tuple[Socket, Socket]:
        """To be polled."""
        return self._link.socket, self._link.monitor

    @property
    def greeted(self) -> bool:
        return self._link.greeted

    @property
    def dropped(self) -> int:
        return self._link.dropped

    def is_closed(self) -> bool:
        """Whether the connection has been lost; it does not come back."""
        return self._link.is_closed()

    def send(self, message: ToServer) -> None:
        """Sends as soon as it can be."""
        if self.greeted:
            self._link.send(message)
        else:
            self._waiting.append(message)

    def send_arrays(self, message: ToServer, arrays: Sequence[Array]) -> Tracker | None:
        """Sends now, to a server that has greeted."""
        return self._link.send(message, arrays)

    def receive(self) -> Iterator[tuple[FromServer, list[memoryview]]]:
        """What has come, at most ``TURN`` messages; does not wait."""
        for _ in range(TURN):
            received = self._link.receive()
            while self.greeted and self._waiting:
                self._link.send(self._waiting.popleft())
            if received is None:
                return
            yield received
            while self._link.more and (received := self._link.receive()):
                yield received

    def close(self) -> None:
        """Nothing more goes out: the generation is over."""
        self._link.close(linger_ms=0)


class Ways:
    """All connections of one process in its present generation.

    peers: who has connected to it and proved itself, by name. links: to servers, by name.
    """

    def __init__(self, settings: MemberSettings, context: Context, listener: DataListener) -> None:
        self.listener = listener
        self.peers: dict[str, Peer] = {}
        self.links: dict[str, ServerLink] = {}
        self._settings, self._context = settings, context
        self._assignment: Assignment | None = None
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Messages that were malformed, or came from strangers, so far. May be called by any thread."""
        return self._dropped + self.listener.dropped

    def enter(self, assignment: Assignment) -> None:
        """Another generation: nothing of the one before goes in or out any more."""
        for name in list(self.links):
            self.drop(name)
        self.peers.clear()
        self._assignment = assignment
        self.listener.enter(assignment.generation)

    def connect(self, infos: Iterable[ServerInfo]) -> None:
        """Begins connections to these servers, where there is none."""
        assert self._assignment
        for info in infos:
            if info.name not in self.links:
                way = pass_to(info, self._settings.name, self._assignment)
                self.links[info.name] = ServerLink(self._context, way, info, self._settings)

    def drop(self, name: str) -> None:
        """Ends the connection to a server."""
        link = self.links.pop(name)
        self._dropped += link.dropped
        link.close()

    def note(self, news: Opened | Closed) -> bool:
        """Whether this changes who is connected: not if a peer has come back on another connection."""
        peer = news.peer
        if isinstance(news, Opened):
            self.peers[peer.name] = peer
            return True
        return self.peers.get(peer.name) == peer and bool(self.peers.pop(peer.name))

    def send(self, name: str, message: ToServer) -> None:
        """To a server that this one has connected to; to one that is lost, nothing."""
        if name in self.links:
            self.links[name].send(message)

    def heard(self, name: str) -> int:
        """So many messages of somebody who has connected are dealt with: all but the last, which may be just
        being answered."""
        peer = self.peers.get(name)
        return max(0, peer.seal.received - 1) if peer else 0

    def answer(
        self, name: str, message: FromServer, arrays: Sequence[Array] = (), lent_bytes: int = 0
    ) -> Tracker | None:
        """To somebody who has connected here, with ``flush`` or before; to one that has gone, nothing."""
        peer = self.peers.get(name)
        return self.listener.put(peer, message, arrays, lent_bytes) if peer else None

    def flush(self) -> None:
        """Answers leave: all that somebody has asked for at the same time as one."""
        self.listener.flush()
