"""The data plane: a server and those who push and pull, with arrays in frames of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import zmq

from elasticflow.errors import ProtocolError
from elasticflow.process.decoding import msgpack_decoder
from elasticflow.step.layout import CHUNK_BYTES, Array
from elasticflow.wire.door import shut_down
from elasticflow.wire.gate import say_once
from elasticflow.wire.keys import MemberKeys, Pass
from elasticflow.wire.messages import FromServer, Hello, ToServer, Welcome, encode
from elasticflow.wire.nearby import keep_close
from elasticflow.wire.numbers import BAD, check
from elasticflow.wire.outbox import Outbox, Parts
from elasticflow.wire.router import Router
from elasticflow.wire.seal import MAC_BYTES, NONCE_BYTES, Guard, Half, Seal
from elasticflow.wire.sending import Tracker, send_frames
from elasticflow.wire.sockets import (
    HANG_UP_S,
    NOBLOCK,
    Context,
    Socket,
    monitor_of,
    poll_ms,
    readable,
)

DATA_BYTES = 3 * CHUNK_BYTES
"""The largest frame on the data plane: an array is a parcel at most, two chunks or a little less."""
MOST_PEERS = 4096
MOST_EARLY = 512
"""Hellos that may wait for their generation."""
HELLO_BYTES = 512


def new_data_socket(context: Context, kind: int) -> Socket:
    socket: Socket = context.socket(kind)
    socket.sndhwm = 0  # what is in flight is bounded by the protocol
    socket.linger = 0
    return socket


class Peer(NamedTuple):
    """The other end of one connection to a DataListener."""

    route: bytes
    name: str
    seal: Seal
    outbox: Outbox[FromServer]


class Opened(NamedTuple):
    """A member has proved itself on a new connection."""

    peer: Peer


class Closed(NamedTuple):
    """A member's connection is closed."""

    peer: Peer


class Received(NamedTuple):
    """A member's message with the arrays that came along, as raw frames. more: others came with it."""

    peer: Peer
    message: ToServer
    frames: list[memoryview]
    more: bool = False


# What travels as one: messages, and how many of its frames are each one's arrays.
_decode_to_server = msgpack_decoder(list[tuple[ToServer, int]]).decode
_decode_from_server = msgpack_decoder(list[tuple[FromServer, int]]).decode
_decode_hello, _decode_welcome = msgpack_decoder(Hello).decode, msgpack_decoder(Welcome).decode


def encoded(parts: Parts[Any]) -> tuple[bytes, Sequence[Array]]:
    """Of what travels as one, the header before it is sealed, and all arrays."""
    header = encode([(message, len(arrays)) for message, arrays in parts])
    if len(parts) == 1:
        return header, parts[0][1]
    return header, [array for _, arrays in parts for array in arrays]


def _shared_out(
    messages: Sequence[tuple[Any, int]], frames: list[memoryview]
) -> list[tuple[Any, list[memoryview]]]:
    """Each message with its frames. Raises ProtocolError if frames are missing, or it cannot be meant."""
    found, start = [], 0
    for message, num in messages:
        check(message)
        found.append((message, frames[start : start + num]))
        start += num
    if not found or start != len(frames) or any(num < 0 for _, num in messages):
        raise ProtocolError("not the arrays that were sent")
    return found


class DataListener:
    """A server's end of the data plane: one ROUTER for all who connect to it.

    The context must ``admit_only_members`` already. Who says Hello is answered in the generation that it
    names: at once, or when that begins (``enter``).

    ``dropped`` counts messages from strangers and malformed ones, ``refused`` connections of strangers.
    A message from a member whose seal does not fit is the last on its connection: what else went missing
    there nobody knows, and one end might wait for it for ever. Both hear that it is closed.
    """

    def __init__(self, context: Context, keys: MemberKeys, host: str, port: int) -> None:
        self._keys = keys
        socket = new_data_socket(context, zmq.ROUTER)
        socket.plain_server = True
        try:
            self._router = Router(socket, host, port, DATA_BYTES)
        except zmq.ZMQError:
            socket.close()
            raise
        self.socket, self.monitor, self.port = socket, self._router.monitor, self._router.port
        self.generation = 0
        self.dropped = 0
        self._peers: dict[bytes, Peer] = {}
        self._proved: set[bytes] = set()
        self._early: dict[bytes, Hello] = {}
        self._unsent: dict[bytes, Outbox[FromServer]] = {}

    @property
    def refused(self) -> int:
        return self._router.refused

    def enter(self, generation: int) -> None:
        """Begins a generation: all peers are forgotten, and who is early for this one is answered."""
        assert generation > self.generation
        self.generation = generation
        self._peers.clear()
        self._proved.clear()
        self.flush()  # to nobody: what was to be sent is free again
        early, self._early = self._early, {}
        for route, hello in early.items():
            try:
                self._greet(route, hello)
            except BAD:
                self.dropped += 1

    def receive(self) -> Iterator[Opened | Closed | Received]:
        """What has come in; does not wait."""
        for route, header, frames in self._router.receive():
            try:
                yield from self._take(route, header.buffer, [frame.buffer for frame in frames])
            except BAD:
                self.dropped += 1

    def closed(self) -> Iterator[Closed]:
        """Members whose connections have closed, and whose last word has been received."""
        for route in self._router.closed():
            self._early.pop(route, None)
            yield from self._forget(route)

    def _take(self, route: bytes, header: memoryview, frames: list[memoryview]) -> Iterator[Any]:
        peer = self._peers.get(route)
        if peer is None:
            if len(header) > HELLO_BYTES or frames or route in self._early:
                raise ProtocolError("a connection must begin with one Hello")
            self._greet(route, self._opened(header))
            return
        try:
            payload = peer.seal.open(header, frames)
        except ProtocolError:
            say_once(f"what {peer.name} sent has not come as it was sent: its connection is closed")
            self._router.hang_up(route)
            yield from self._forget(route)
            raise
        parts = _shared_out(_decode_to_server(payload), frames)
        if route not in self._proved:  # a Hello may be a replay; what follows it cannot be
            self._proved.add(route)
            yield Opened(peer)
        left = len(parts)
        for message, arrays in parts:
            left -= 1
            yield Received(peer, message, arrays, left > 0)

    def _opened(self, header: memoryview) -> Hello:
        """A Hello that is by whom it says. Raises ProtocolError."""
        hello: Hello = _decode_hello(header[:-MAC_BYTES])
        check(hello)
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce has {NONCE_BYTES} bytes")
        try:
            self._seal_of(hello).open(header)
        except ProtocolError:
            say_once(f"somebody says to be {hello.name}, and has not its key: dropped")
            raise
        return hello

    def _seal_of(self, hello: Hello) -> Seal:
        """Of a handshake."""
        return Seal(self._keys.pass_for(hello.name, hello.generation).key, b"server", b"worker")

    def _forget(self, route: bytes) -> Iterator[Closed]:
        peer = self._peers.pop(route, None)
        if peer and route in self._proved:
            self._proved.remove(route)
            yield Closed(peer)

    def _greet(self, route: bytes, hello: Hello) -> None:
        """Answers a Hello of this generation, keeps a later one. Raises ProtocolError for others."""
        if hello.generation < max(1, self.generation):
            raise ProtocolError(f"generation {hello.generation} is past")
        if hello.generation > self.generation:
            if len(self._early) >= MOST_EARLY:
                raise ProtocolError("too many are early")
            self._early[route] = hello
            return
        if len(self._peers) >= MOST_PEERS:
            raise ProtocolError("too many connections")
        way = self._keys.pass_for(hello.name, hello.generation)
        guard = Guard(hello.guard)
        half = Half(way.key, secret=guard is Guard.ALL)
        seal = Seal(half.key(hello.nonce, first=False), b"server", b"worker", guard)
        # With the nonce it answers this Hello, and no other that somebody has recorded.
        sealed = self._seal_of(hello).close(hello.nonce + encode(Welcome(nonce=half.nonce)))
        if self._router.send(route, [sealed]) is not False:
            self._peers[route] = Peer(route, hello.name, seal, Outbox(partial(self._send, route, seal)))

    def put(
        self, peer: Peer, message: FromServer, arrays: Sequence[Array] = (), lent_bytes: int = 0
    ) -> Tracker | None:
        """Sends to a member with the next ``flush`` or before, see ``Outbox``; if that has gone, nothing."""
        if peer.route not in self._peers:
            return None
        tracker = peer.outbox.put(message, arrays, lent_bytes)
        if len(peer.outbox):
            self._unsent[peer.route] = peer.outbox
        return tracker

    def flush(self) -> None:
        """Sends what was put, to each as one."""
        unsent, self._unsent = self._unsent, {}
        for outbox in unsent.values():
            outbox.flush()

    def send(self, peer: Peer, message: FromServer, arrays: Sequence[Array] = ()) -> Tracker | None:
        """Sends to a member now, what was put for it before included; to one that has gone, nothing."""
        tracker = self.put(peer, message, arrays)
        return peer.outbox.flush() or tracker

    def _send(self, route: bytes, seal: Seal, parts: Parts[FromServer]) -> Tracker | None:
        if route not in self._peers:
            return None
        header, arrays = encoded(parts)
        return self._router.send(route, [seal.close(header, arrays)], seal.hidden(arrays)) or None

    def close(self) -> None:
        self._router.close(linger_ms=0)


class DataLink:
    """The other end: of a worker, or of a server to another, for the generation of its pass.

    ``greeted``: the server has answered ``hello``, and may be sent messages.
    ``dropped`` counts messages that were malformed or did not come from that server.
    """

    def __init__(self, context: Context, way: Pass, endpoint: str, guard: Guard) -> None:
        self._way, self._guard = way, guard
        self.endpoint = endpoint
        self.socket = new_data_socket(context, zmq.DEALER)
        self.socket.maxmsgsize = DATA_BYTES
        self.socket.reconnect_ivl = -1  # a new connection would need a new handshake
        self.socket.plain_username = way.user
        self.socket.plain_password = way.password
        self.monitor = monitor_of(self.socket, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self.socket.connect(endpoint)
        self.greeted = False
        self.dropped = 0
        self._fd = -1
        """Of the connection, once greeted."""
        self._broken = False
        self._half = Half(way.key, secret=guard is Guard.ALL)
        self._seal = Seal(way.key, b"worker", b"server")
        self._outbox: Outbox[ToServer] = Outbox(self._send_all)
        self._come: deque[tuple[FromServer, list[memoryview]]] = deque()
        nonce = self._half.nonce
        hello = Hello(name=way.name, generation=way.generation, nonce=nonce, guard=guard.value)
        self._send(encode(hello))

    @property
    def sent(self) -> int:
        """Messages that were sent since the handshake."""
        return self._seal.sent

    def send(self, message: ToServer, arrays: Sequence[Array] = ()) -> Tracker | None:
        """Sends to the server now, what was put before included; to one that has gone, nothing."""
        tracker = self.put(message, arrays)
        return self._outbox.flush() or tracker

    def put(self, message: ToServer, arrays: Sequence[Array] = (), lent_bytes: int = 0) -> Tracker | None:
        """Sends with the next ``flush`` or ``send``, or before, see ``Outbox``; if that has gone, nothing."""
        assert self.greeted
        return self._outbox.put(message, arrays, lent_bytes)

    def flush(self) -> None:
        """Sends what was put, as one."""
        self._outbox.flush()

    def _send_all(self, parts: Parts[ToServer]) -> Tracker | None:
        return self._send(*encoded(parts))

    def _send(self, header: bytes, arrays: Sequence[Array] = ()) -> Tracker | None:
        try:
            header = self._seal.close(header, arrays)
            return send_frames(self.socket, [header], self._seal.hidden(arrays))
        except zmq.Again:  # a link that is closed; ZeroMQ would wait for another
            return None

    def receive(self) -> tuple[FromServer, list[memoryview]] | None:
        """The next message and its arrays' frames; None if there is none yet."""
        while not self._come:
            if not readable(self.socket):
                return None
            header, *frames = self.socket.recv_multipart(NOBLOCK, copy=False)
            if not self.greeted:
                self._fd = int(header.get(zmq.SRCFD))
                keep_close(self._fd)
            arrays = [frame.buffer for frame in frames]
            try:
                self._come.extend(self._open(header.buffer, arrays))
            except BAD:
                self.dropped += 1
        return self._come.popleft()

    @property
    def more(self) -> bool:
        """Whether there is another message that came with the last, which its socket does not tell of."""
        return bool(self._come)

    def _open(
        self, header: memoryview, arrays: list[memoryview]
    ) -> Sequence[tuple[FromServer, list[memoryview]]]:
        """Nothing: it was the Welcome."""
        if self._broken:
            raise ProtocolError("after a message whose seal does not fit there is no other")
        if not self.greeted:
            self._take_welcome(self._seal.open(header))
            return ()
        try:
            payload = self._seal.open(header, arrays)
        except ProtocolError:
            say_once(
                f"what {self.endpoint} sent has not come as it was sent: the connection is not used again"
            )
            self._broken = True
            raise
        return _shared_out(_decode_from_server(payload), arrays)

    def _take_welcome(self, payload: memoryview) -> None:
        welcome = _decode_welcome(payload[NONCE_BYTES:])
        if payload[:NONCE_BYTES] != self._half.nonce:
            # It may be one that somebody has recorded: the right one is still to come.
            self._seal = Seal(self._way.key, b"worker", b"server")
            raise ProtocolError("not the answer to this Hello")
        key = self._half.key(welcome.nonce, first=True)
        self._seal = Seal(key, b"worker", b"server", self._guard)
        self.greeted = True

    def is_closed(self) -> bool:
        """Whether the connection has been lost; it does not come back."""
        return self._broken or readable(self.monitor)

    def close(self, linger_ms: int | None = None) -> None:
        """linger_ms: how long what was sent may take to go out; None: 2 s, if anybody takes it."""
        if self.socket.closed:
            return
        if linger_ms is None:
            linger_ms = 0 if self.is_closed() else 2000
        if not linger_ms and self.greeted and not readable(self.monitor):
            shut_down(self._fd)
            self.monitor.poll(poll_ms(HANG_UP_S))
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger_ms)
