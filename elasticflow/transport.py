"""Sockets that only members of a job can use.

Control plane: CURVE (encrypted, both sides authenticated by keys made for the job).

Data plane: plain TCP, so that a gigabyte of gradients is not encrypted, but authenticated: both
sides prove in a handshake that they hold the job's data key, derive a key for this connection from
it and two fresh nonces, and from then on every header ends with a MAC (BLAKE2b, 16 bytes) over its
bytes, its direction and its place in the row of messages. So nobody without the key can join,
forge, replay, drop or reorder a message unnoticed, and nobody outside learns the key; the arrays
themselves can be read, and in flight be altered, by somebody who owns the network in between. With
``encrypt_data`` the data plane uses CURVE too, which closes that hole and costs throughput
(``python -m benchmarks seal`` tells how much either costs).

A message is looked at only when all of it is in memory, so somebody must decide before that who may
send any. Under CURVE the handshake does. On the plain data plane ZeroMQ's PLAIN does: a password,
made from the data key, before the first message. It goes over the wire as it is, so it keeps out those
who can reach the port, not those who can listen on the network; all that the latter gain is what it
guards, which is memory: to be believed they still need the seal. The process itself decides who
passes (``admit_only_members``), and without that nobody does.

What strangers can take: a connection, for ``HANDSHAKE_MS``, in which one frame of at most
``CONTROL_BYTES`` or ``DATA_BYTES`` may arrive.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import socket as sockets
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import zmq
from zmq.utils import z85

from elasticflow.errors import ProtocolError
from elasticflow.guard import guarded_thread
from elasticflow.keys import MasterKeys, MemberKeys, data_password
from elasticflow.layout import CHUNK_BYTES, Array
from elasticflow.messages import (
    Clip,
    FromMaster,
    FromServer,
    Hello,
    Norms,
    Progress,
    ToMaster,
    ToServer,
    Welcome,
    decode_to_master,
    encode,
)
from elasticflow.texts import MOST_CHARS, all_sendable

# pyzmq's classes are generic over what recv returns; ours return bytes or frames, as asked.
Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"

MAC_BYTES = 16
NONCE_BYTES = 16
COPY_BELOW_BYTES = 64 << 10
"""Frames below this are copied into the socket; others are sent in place."""
CONTROL_BYTES = 64 << 20
"""The largest frame on the control plane."""
DATA_BYTES = 2 * CHUNK_BYTES
"""The largest frame on the data plane: an array is a parcel at most, which is a chunk or a little less."""
HANDSHAKE_MS = 5000
"""A connection that has not proved itself by then is closed."""
BACKLOG = 1024
TURN = 1000
"""So many messages are read at most before others get their turn."""
MOST_PEERS = 4096
MOST_EARLY = 512
"""Hellos that may wait for their generation."""
HELLO_BYTES = 512
TELL_OF_THE_MODEL = (Progress, Norms, Clip)
"""Messages whose fractions come out of the model."""
WHOLE = 2**53
"""Whole numbers in messages are below; ticks, rows and places are, by far."""

BAD = (ProtocolError, msgspec.MsgspecError, ValueError, RecursionError)
"""What bytes that are no message are found out by. RecursionError: by lists in lists in lists."""

ZAP = "inproc://zeromq.zap.01"
DOMAIN = b"elasticflow"
USER = b"member"


class Gate:
    """Tells ZeroMQ which connections to a context's sockets may be made (ZAP, ZeroMQ RFC 27).

    Python's own (``zmq.auth``) would do, but writes passwords to its log and loads asyncio.
    """

    def __init__(self, context: Context, keys: MemberKeys) -> None:
        self._context = context
        self._credentials = {
            b"CURVE": [z85.decode(keys.member_public)],
            b"PLAIN": [USER, data_password(keys)],
        }
        self._socket: Socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP)
        self._thread = guarded_thread(self._run, "gate")
        self._thread.start()

    def _run(self) -> None:
        try:
            while request := self._socket.recv_multipart():
                if len(request) < 6:
                    break  # stop()
                self._socket.send_multipart(self._answer(request))
            self._socket.send(b"")
        except zmq.ZMQError:
            pass  # the context has ended before the gate
        self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain, _, _, mechanism, *credentials = request
        right = self._credentials.get(mechanism, [])
        fits = domain == DOMAIN and len(right) == len(credentials) > 0
        fits = fits and all([hmac.compare_digest(*pair) for pair in zip(right, credentials, strict=True)])
        status = [b"200", b"OK"] if fits else [b"400", b"not a member of this job"]
        return [version, number, *status, USER if fits else b"", b""]

    def stop(self) -> None:
        """Nobody gets in any more; who is in, is."""
        with self._context.socket(zmq.REQ) as socket:
            socket.connect(ZAP)
            socket.send(b"")
            socket.recv()
        self._thread.join()


def admit_only_members(context: Context, keys: MemberKeys) -> Gate:
    """Opens the gate of a context, one for all its listeners, to members alone. Stop it after use.

    Before the first listener: those whom it cannot ask it refuses, and who is refused does not come back.
    """
    return Gate(context, keys)


def poll_ms(seconds: float | None) -> int | None:
    """A time to wait, as ZeroMQ's pollers take it; None: for ever. Never too short, which would spin."""
    return None if seconds is None else max(0, math.ceil(seconds * 1000))


def _monitor(socket: Socket, events: int) -> Socket:
    """A socket on which one hears of the connections of another.

    Unlike pyzmq's it has no limit: at its limit ZeroMQ stops serving all the context's connections.
    """
    endpoint = f"inproc://monitor-{secrets.token_hex(8)}"
    socket.monitor(endpoint, events)
    monitor: Socket = socket.context.socket(zmq.PAIR)
    monitor.rcvhwm = 0
    monitor.linger = 0
    monitor.connect(endpoint)
    return monitor


class _Router:
    """A ROUTER, and which of its connections have closed.

    The monitor names a connection by its descriptor, messages name it by their route, and carry the
    descriptor. It is free for the next connection as soon as one closes, so what is read of the old one
    after that must not be taken for the new one's: descriptors that are open are kept account of, and
    routes, which ZeroMQ numbers, tell which of two is the newer one.

    ``refused`` counts connections that were closed before they had got a word through: strangers', mostly.
    """

    def __init__(self, socket: Socket, host: str, port: int, max_bytes: int) -> None:
        self.socket = socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.zap_domain = DOMAIN
        socket.maxmsgsize = max_bytes
        socket.handshake_ivl = HANDSHAKE_MS
        socket.backlog = BACKLOG
        self.refused = 0
        self.monitor = _monitor(socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._open: set[int] = set()
        self._routes: dict[int, bytes] = {}
        self._fds: dict[bytes, int] = {}
        self._dying: list[bytes] = []
        """Their connections have closed; something of theirs may still be unread."""
        self._closed: list[bytes] = []
        if port == 0:
            self.port = socket.bind_to_random_port(f"tcp://{host}")
        else:
            socket.bind(f"tcp://{host}:{port}")
            self.port = port

    def receive(self) -> Iterator[tuple[bytes, zmq.Frame, list[zmq.Frame]]]:
        """What has come in, at most ``TURN`` messages: route, first frame, others."""
        self._read_events()
        for _ in range(TURN):
            try:
                route, first, *others = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._bury()
                return
            except ValueError:  # a route and nothing else
                continue
            name = route.bytes
            if name not in self._fds:
                self._enter(name, first)
            yield name, first, others

    def closed(self) -> Iterator[bytes]:
        """Routes whose connections have closed, and of which all has been read."""
        self._read_events()
        if self._dying and not _readable(self.socket):
            self._bury()
        while self._closed:
            yield self._closed.pop(0)

    def send(self, route: bytes, head: Sequence[bytes], arrays: Sequence[Array] = ()) -> Any:
        """The tracker, if any; False if the connection has gone. Who takes nothing for long is hung up on."""
        try:
            return _send(self.socket, [route, *head], arrays)
        except zmq.Again:
            self.hang_up(route)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return False

    def hang_up(self, route: bytes) -> None:
        """Closes a connection, as far as it is still open; both ends then hear of it."""
        self._read_events()
        fd = self._fds.get(route)
        if fd is None or fd not in self._open or self._routes.get(fd) != route:
            return
        try:
            with sockets.socket(fileno=os.dup(fd)) as connection:
                connection.shutdown(sockets.SHUT_RDWR)
        except OSError:
            pass  # it has closed in this very moment

    def close(self, linger_ms: int) -> None:
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger_ms)

    def _read_events(self) -> None:
        while _readable(self.monitor):
            event, value = struct.unpack("=Hi", self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._open.add(value)
                continue
            self._open.discard(value)
            route = self._routes.pop(value, None)
            if route is None:
                self.refused += 1
            else:
                self._dying.append(route)

    def _enter(self, route: bytes, first: zmq.Frame) -> None:
        """The first message on a connection: it is open, or has closed already, and was taken for silent."""
        self._read_events()
        fd = first.get(zmq.SRCFD)
        assert isinstance(fd, int)
        self._fds[route] = fd
        late: bytes | None = route
        if fd in self._open:
            late = self._routes.get(fd)
            if late is None or _is_newer(route, late):
                self._routes[fd] = route
            else:
                late = route
        if late is not None:
            self._dying.append(late)
            self.refused -= 1

    def _bury(self) -> None:
        """Nothing is left to be read: a connection hands over what it got before it tells of its end."""
        for route in self._dying:
            del self._fds[route]
        self._closed += self._dying
        self._dying.clear()


def _readable(socket: Socket) -> bool:
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)


def _is_newer(one: bytes, other: bytes) -> bool:
    """ZeroMQ numbers routes in the order in which connections are made, modulo 2^32."""
    difference = int.from_bytes(one[-4:], "big") - int.from_bytes(other[-4:], "big")
    return 0 < difference % 2**32 < 2**31


def check(message: msgspec.Struct) -> None:
    """Raises ProtocolError if there is a number in it that none of ours has: NaN, infinite or huge.

    A NaN would be passed on to the model, and a huge number to something that allocates. What tells of
    costs and gradients may hold any float: a model that diverges has such numbers.
    """
    _check_all(msgspec.structs.astuple(message), not isinstance(message, TELL_OF_THE_MODEL))


def _check_all(values: tuple[Any, ...], finite: bool) -> None:
    for value in values:
        kind = type(value)
        if kind is int:
            if not -1 <= value < WHOLE:
                raise ProtocolError(f"a whole number that cannot be meant: {value}")
        elif kind is float:
            if finite and not math.isfinite(value):
                raise ProtocolError(f"a number that is none: {value}")
        elif kind is tuple:
            _check_all(value, finite)
        elif kind is dict:
            _check_all((*value, *value.values()), finite)
        elif isinstance(value, msgspec.Struct):
            check(value)


# --- control plane -------------------------------------------------------------------------------


class ControlListener:
    """The master's end of the control plane: one ROUTER for all members and clients.

    The context must ``admit_only_members`` already. Raises zmq.ZMQError if the port is taken.
    ``dropped`` counts malformed messages, ``refused`` connections of strangers.
    """

    def __init__(self, context: Context, keys: MasterKeys, host: str, port: int) -> None:
        socket: Socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = keys.member.master_public.encode()
        socket.curve_secretkey = keys.secret.encode()
        try:
            self._router = _Router(socket, host, port, CONTROL_BYTES)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        self.socket, self.monitor, self.port = socket, self._router.monitor, self._router.port
        self.dropped = 0

    @property
    def refused(self) -> int:
        return self._router.refused

    def receive(self) -> Iterator[tuple[bytes, ToMaster]]:
        """What has come in, with the route to answer; does not wait."""
        for route, data, others in self._router.receive():
            try:
                if others:
                    raise ProtocolError("a control message is one frame")
                message = decode_to_master(data.bytes)
                check(message)
            except BAD:
                self.dropped += 1
            else:
                yield route, message

    def closed(self) -> Iterator[bytes]:
        """Routes whose connections have closed, and whose last word has been received."""
        return self._router.closed()

    def send(self, route: bytes, message: FromMaster) -> None:
        """Sends to a member or client; to one that has gone, nothing."""
        self._router.send(route, [control_frame(message)])

    def close(self, linger_ms: int = 1000) -> None:
        self._router.close(linger_ms)


def control_frame(message: ToMaster | FromMaster) -> bytes:
    """A message as it goes over the control plane; its texts are made fit for that: ``elasticflow.texts``.

    Raises ProtocolError if it is too large all the same: who got such a frame would close the connection, and
    get it again over the next one.
    """
    try:
        frame = encode(message)
    except UnicodeEncodeError:
        frame = b""
    if not 0 < len(frame) <= MOST_CHARS:
        frame = encode(all_sendable(message))
    if len(frame) > CONTROL_BYTES:
        raise ProtocolError(
            f"a message of {len(frame):,} bytes ({type(message).__name__}) cannot be sent; at most "
            f"{CONTROL_BYTES:,} are allowed. Has the model millions of parameters with names of their own?"
        )
    return frame


def control_link(context: Context, keys: MemberKeys, endpoint: str) -> Socket:
    """A member's DEALER to the master at ``endpoint``. If the master goes, it is there for the next one."""
    socket: Socket = context.socket(zmq.DEALER)
    _as_curve_client(socket, keys, keys.master_public)
    socket.maxmsgsize = CONTROL_BYTES
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 500
    socket.linger = 1000
    socket.connect(endpoint)
    return socket


def _as_curve_client(socket: Socket, keys: MemberKeys, server_public: str) -> None:
    socket.curve_serverkey = server_public.encode()
    socket.curve_publickey = keys.member_public.encode()
    socket.curve_secretkey = keys.member_secret.encode()


# --- data plane ----------------------------------------------------------------------------------


def _mac(key: bytes, direction: bytes, counter: int, payload: bytes | memoryview) -> bytes:
    salt = counter.to_bytes(16, "little")
    return hashlib.blake2b(payload, digest_size=MAC_BYTES, key=key, salt=salt, person=direction).digest()


class Seal:
    """One end of an authenticated connection: seals headers that go out, opens those that come in."""

    def __init__(self, key: bytes, outgoing: bytes, incoming: bytes) -> None:
        self._key, self._outgoing, self._incoming = key, outgoing, incoming
        self._sent = self._received = 0

    def close(self, payload: bytes) -> bytes:
        """The payload with its MAC."""
        self._sent += 1
        return payload + _mac(self._key, self._outgoing, self._sent, payload)

    def open(self, sealed: memoryview) -> memoryview:
        """The payload. Raises ProtocolError if it is not the next one from the other end."""
        payload, mac = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._key, self._incoming, self._received + 1, payload)):
            raise ProtocolError("a message whose seal does not fit")
        self._received += 1
        return payload


def _session_key(data_key: bytes, hello: bytes, welcome: bytes) -> bytes:
    return hashlib.blake2b(hello + welcome, digest_size=32, key=data_key).digest()


def _new_data_socket(context: Context, kind: int) -> Socket:
    socket: Socket = context.socket(kind)
    socket.sndhwm = 0  # what is in flight is bounded by the protocol
    socket.linger = 0
    return socket


def as_frames(arrays: Sequence[Array]) -> list[memoryview]:
    """The bytes of contiguous arrays, not copied."""
    return [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays]  # type: ignore[arg-type]


def _send(socket: Socket, head: list[bytes], arrays: Sequence[Array]) -> zmq.MessageTracker | None:
    """Sends header and arrays. The tracker, if any, is done once the memory of all arrays is free again.

    Does not wait; raises zmq.Again instead, and then has sent nothing. Frame by frame: ``send_multipart``
    returns the tracker of the last one alone, and that may be free long before those before it.
    """
    if not arrays:
        socket.send_multipart(head, zmq.NOBLOCK)
        return None
    socket.send_multipart(head, zmq.NOBLOCK | zmq.SNDMORE)
    trackers: list[zmq.MessageTracker] = []
    frames = as_frames(arrays)
    for left, frame in zip(reversed(range(len(frames))), frames, strict=True):
        flags = zmq.NOBLOCK | (zmq.SNDMORE if left else 0)
        if frame.nbytes < COPY_BELOW_BYTES:
            socket.send(frame, flags)
        elif tracker := socket.send(frame, flags, copy=False, track=True):
            trackers.append(tracker)
    return zmq.MessageTracker(*trackers) if len(trackers) > 1 else trackers[0] if trackers else None


class Peer(NamedTuple):
    """The other end of one connection to a DataListener."""

    route: bytes
    name: str
    seal: Seal


class Opened(NamedTuple):
    """A member has proved itself on a new connection."""

    peer: Peer


class Closed(NamedTuple):
    """A member's connection is closed."""

    peer: Peer


class Received(NamedTuple):
    """A member's message with the arrays that came along, as raw frames."""

    peer: Peer
    message: ToServer
    frames: list[memoryview]


_decode_to_server = msgspec.msgpack.Decoder(ToServer).decode
_decode_from_server = msgspec.msgpack.Decoder(FromServer).decode


class DataListener:
    """A server's end of the data plane: one ROUTER for all who connect to it.

    The context must ``admit_only_members`` already. Who says Hello is answered in the generation that it
    names: at once, or when that begins (``enter``).

    ``dropped`` counts messages from strangers and malformed ones, ``refused`` connections of strangers.
    A message from a member whose seal does not fit is the last on its connection: what else went missing
    there nobody knows, and one end might wait for it for ever. Both hear that it is closed.
    """

    def __init__(self, context: Context, keys: MemberKeys, host: str, port: int, encrypt: bool) -> None:
        self._keys = keys
        socket = _new_data_socket(context, zmq.ROUTER)
        if encrypt:
            socket.curve_server = True
            socket.curve_publickey = keys.server_public.encode()
            socket.curve_secretkey = keys.server_secret.encode()
        else:
            socket.plain_server = True
        try:
            self._router = _Router(socket, host, port, DATA_BYTES)
        except zmq.ZMQError:
            socket.close()
            raise
        self.socket, self.monitor, self.port = socket, self._router.monitor, self._router.port
        self.generation = 0
        self.dropped = 0
        self._peers: dict[bytes, Peer] = {}
        self._proved: set[bytes] = set()
        self._early: dict[bytes, Hello] = {}

    @property
    def refused(self) -> int:
        return self._router.refused

    def enter(self, generation: int) -> None:
        """Begins a generation: all peers are forgotten, and who is early for this one is answered."""
        assert generation > self.generation
        self.generation = generation
        self._peers.clear()
        self._proved.clear()
        early, self._early = self._early, {}
        for route, hello in early.items():
            try:
                self._greet(route, hello)
            except ProtocolError:
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
            hello = _decode_to_server(Seal(self._keys.data, b"server", b"worker").open(header))
            if not isinstance(hello, Hello):
                raise ProtocolError("a connection must begin with one Hello")
            check(hello)
            self._greet(route, hello)
            return
        try:
            payload = peer.seal.open(header)
        except ProtocolError:
            self._router.hang_up(route)
            yield from self._forget(route)
            raise
        message = _decode_to_server(payload)
        check(message)
        if isinstance(message, Hello):
            raise ProtocolError("a connection must begin with one Hello")
        if route not in self._proved:  # a Hello may be a replay; what follows it cannot be
            self._proved.add(route)
            yield Opened(peer)
        yield Received(peer, message, frames)

    def _forget(self, route: bytes) -> Iterator[Closed]:
        peer = self._peers.pop(route, None)
        if peer and route in self._proved:
            self._proved.remove(route)
            yield Closed(peer)

    def _greet(self, route: bytes, hello: Hello) -> None:
        """Answers a Hello of this generation, keeps a later one. Raises ProtocolError for others."""
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce has {NONCE_BYTES} bytes")
        if hello.generation < max(1, self.generation):
            raise ProtocolError(f"generation {hello.generation} is past")
        if hello.generation > self.generation:
            if len(self._early) >= MOST_EARLY:
                raise ProtocolError("too many are early")
            self._early[route] = hello
            return
        if len(self._peers) >= MOST_PEERS:
            raise ProtocolError("too many connections")
        nonce = secrets.token_bytes(NONCE_BYTES)
        welcome = Seal(self._keys.data, b"server", b"worker")
        sealed = welcome.close(hello.nonce + encode(Welcome(nonce=nonce)))
        if self._router.send(route, [sealed]) is not False:
            key = _session_key(self._keys.data, hello.nonce, nonce)
            self._peers[route] = Peer(route, hello.name, Seal(key, b"server", b"worker"))

    def send(
        self, peer: Peer, message: FromServer, arrays: Sequence[Array] = ()
    ) -> zmq.MessageTracker | None:
        """Sends to a member; to one that has gone, nothing."""
        if peer.route not in self._peers:
            return None
        return self._router.send(peer.route, [peer.seal.close(encode(message))], arrays) or None

    def close(self) -> None:
        self._router.close(linger_ms=0)


class DataLink:
    """The other end: of a worker, or of a server to another, for one generation.

    ``greeted``: the server has answered ``hello``, and may be sent messages.
    ``dropped`` counts messages that were malformed or did not come from a server of this job.
    """

    def __init__(self, context: Context, keys: MemberKeys, endpoint: str, encrypt: bool) -> None:
        self._keys = keys
        self.endpoint = endpoint
        self.socket = _new_data_socket(context, zmq.DEALER)
        self.socket.maxmsgsize = DATA_BYTES
        self.socket.reconnect_ivl = -1  # a new connection would need a new handshake
        if encrypt:
            _as_curve_client(self.socket, keys, keys.server_public)
        else:
            self.socket.plain_username = USER
            self.socket.plain_password = data_password(keys)
        self.monitor = _monitor(self.socket, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self.socket.connect(endpoint)
        self.greeted = False
        self.dropped = 0
        self._broken = False
        self._nonce = b""
        self._seal = Seal(keys.data, b"worker", b"server")

    def hello(self, name: str, generation: int) -> None:
        """The first word; does not wait for the answer, which ``receive`` takes."""
        assert not self._nonce
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._send(Hello(name=name, generation=generation, nonce=self._nonce))

    def send(self, message: ToServer, arrays: Sequence[Array] = ()) -> zmq.MessageTracker | None:
        """Sends to the server; to one that has gone, nothing."""
        assert self.greeted
        return self._send(message, arrays)

    def _send(self, message: ToServer, arrays: Sequence[Array] = ()) -> zmq.MessageTracker | None:
        try:
            return _send(self.socket, [self._seal.close(encode(message))], arrays)
        except zmq.Again:  # a link that is closed; ZeroMQ would wait for another
            return None

    def receive(self) -> tuple[FromServer, list[memoryview]] | None:
        """The next message and its arrays' frames; None if there is none yet."""
        while True:
            try:
                header, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            try:
                message = self._open(header.buffer)
            except BAD:
                self.dropped += 1
            else:
                if message is not None:
                    return message, [frame.buffer for frame in frames]

    def _open(self, header: memoryview) -> FromServer | None:
        """None: it was the Welcome."""
        if self._broken:
            raise ProtocolError("after a message whose seal does not fit there is no other")
        if not self.greeted:
            self._take_welcome(self._seal.open(header))
            return None
        try:
            payload = self._seal.open(header)
        except ProtocolError:
            self._broken = True
            raise
        message: FromServer = _decode_from_server(payload)
        check(message)
        return message

    def _take_welcome(self, payload: memoryview) -> None:
        welcome = _decode_from_server(payload[NONCE_BYTES:])
        if not self._nonce or payload[:NONCE_BYTES] != self._nonce or not isinstance(welcome, Welcome):
            # It may be one that somebody has recorded: the right one is still to come.
            self._seal = Seal(self._keys.data, b"worker", b"server")
            raise ProtocolError("not the answer to this Hello")
        key = _session_key(self._keys.data, self._nonce, welcome.nonce)
        self._seal = Seal(key, b"worker", b"server")
        self.greeted = True

    def is_closed(self) -> bool:
        """Whether the connection has been lost; it does not come back."""
        return self._broken or _readable(self.monitor)

    def close(self, linger_ms: int | None = None) -> None:
        """linger_ms: how long what was sent may take to go out; None: 2 s, if anybody takes it."""
        if self.socket.closed:
            return
        if linger_ms is None:
            linger_ms = 0 if self.is_closed() else 2000
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger_ms)
