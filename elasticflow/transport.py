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
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from elasticflow.errors import ProtocolError
from elasticflow.keys import MasterKeys, MemberKeys
from elasticflow.layout import Array
from elasticflow.messages import FromServer, Hello, ToServer, Welcome, encode

# pyzmq's classes are generic over what recv returns; ours return bytes or frames, as asked.
Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"

MAC_BYTES = 16
COPY_BELOW_BYTES = 64 << 10
"""Frames below this are copied into the socket; others are sent in place."""


class _OnlyMembers:
    """Tells ZeroMQ's authenticator which public keys may connect."""

    def __init__(self, public: str) -> None:
        self._allowed = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._allowed)


def admit_only_members(context: Context, keys: MemberKeys) -> ThreadAuthenticator:
    """Starts the authenticator of a context: only holders of the members' key connect. Stop it after use."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=_OnlyMembers(keys.member_public))
    return authenticator


def poll_ms(seconds: float | None) -> int | None:
    """A time to wait, as ZeroMQ's pollers take it; None: for ever. Never too short, which would spin."""
    return None if seconds is None else max(0, math.ceil(seconds * 1000))


def _bind(socket: Socket, host: str, port: int) -> int:
    if port == 0:
        return socket.bind_to_random_port(f"tcp://{host}")
    socket.bind(f"tcp://{host}:{port}")
    return port


def control_listener(context: Context, keys: MasterKeys, host: str, port: int) -> tuple[Socket, int]:
    """The master's ROUTER, and its port. Raises zmq.ZMQError if the port is taken.

    The context must ``admit_only_members``.
    """
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_publickey = keys.member.master_public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.linger = 1000
    return socket, _bind(socket, host, port)


def control_link(context: Context, keys: MemberKeys, endpoint: str) -> Socket:
    """A member's DEALER to the master at ``endpoint``."""
    socket = context.socket(zmq.DEALER)
    _as_curve_client(socket, keys, keys.master_public)
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
    socket = context.socket(kind)
    socket.sndhwm = socket.rcvhwm = 0  # what is in flight is bounded by the protocol
    socket.linger = 0
    return socket


def as_frames(arrays: Sequence[Array]) -> list[memoryview]:
    """The bytes of contiguous arrays, not copied."""
    return [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays]  # type: ignore[arg-type]


def _send(socket: Socket, head: list[bytes], arrays: Sequence[Array]) -> zmq.MessageTracker | None:
    """Sends header and arrays. The tracker, if any, is done once the arrays' memory is free again."""
    if not arrays:
        socket.send_multipart(head)
        return None
    frames = as_frames(arrays)
    large = any(frame.nbytes >= COPY_BELOW_BYTES for frame in frames)
    tracker: zmq.MessageTracker | None = socket.send_multipart([*head, *frames], copy=not large, track=large)
    return tracker


class Peer(NamedTuple):
    """The other end of one connection to a DataListener."""

    route: bytes
    name: str
    seal: Seal
    fd: int


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
    """A server's end of the data plane: one ROUTER for all its workers.

    ``dropped`` counts messages from strangers and malformed ones.
    """

    def __init__(self, context: Context, keys: MemberKeys, host: str, port: int, encrypt: bool) -> None:
        self._keys = keys
        self.socket = _new_data_socket(context, zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if encrypt:
            self.socket.curve_server = True
            self.socket.curve_publickey = keys.server_public.encode()
            self.socket.curve_secretkey = keys.server_secret.encode()
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.port = _bind(self.socket, host, port)
        self._peers: dict[bytes, Peer] = {}
        self._by_fd: dict[int, Peer] = {}
        self._proved: set[bytes] = set()
        self.dropped = 0

    def closed(self) -> Iterator[Closed]:
        """Members whose connections have closed since the last call."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            peer = self._by_fd.pop(event["value"], None)
            if peer:
                del self._peers[peer.route]
                if peer.route in self._proved:
                    self._proved.remove(peer.route)
                    yield Closed(peer)

    def receive(self) -> Iterator[Opened | Closed | Received]:
        """All that has come in; does not wait."""
        while True:
            try:
                route, header, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except ValueError:
                self.dropped += 1
                continue
            try:
                yield from self._take(route.bytes, header, [frame.buffer for frame in frames])
            except (ProtocolError, msgspec.MsgspecError, ValueError):
                self.dropped += 1

    def _take(self, route: bytes, header: zmq.Frame, frames: list[memoryview]) -> Iterator[Any]:
        peer = self._peers.get(route)
        if peer:
            message = _decode_to_server(peer.seal.open(header.buffer))
            if route not in self._proved:  # a Hello may be a replay; what follows it cannot be
                self._proved.add(route)
                yield Opened(peer)
            yield Received(peer, message, frames)
            return
        payload = Seal(self._keys.data, b"server", b"worker").open(header.buffer)
        hello = _decode_to_server(payload)
        if not isinstance(hello, Hello):
            raise ProtocolError("a connection must begin with Hello")
        # A closed connection's descriptor may be this one's: let go of the old one first.
        yield from self.closed()
        nonce = secrets.token_bytes(16)
        welcome = Seal(self._keys.data, b"server", b"worker")
        self.socket.send_multipart([route, welcome.close(hello.nonce + encode(Welcome(nonce=nonce)))])
        key = _session_key(self._keys.data, hello.nonce, nonce)
        fd = header.get(zmq.SRCFD)
        assert isinstance(fd, int)
        peer = Peer(route, hello.name, Seal(key, b"server", b"worker"), fd)
        self._peers[route] = self._by_fd[fd] = peer

    def send(
        self, peer: Peer, message: FromServer, arrays: Sequence[Array] = ()
    ) -> zmq.MessageTracker | None:
        """Sends to a member; to one that has gone, nothing."""
        if peer.route not in self._peers:
            return None
        try:
            return _send(self.socket, [peer.route, peer.seal.close(encode(message))], arrays)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return None

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


class DataLink:
    """A worker's end of the connection to one server."""

    def __init__(self, context: Context, keys: MemberKeys, endpoint: str, encrypt: bool) -> None:
        self._keys = keys
        self.endpoint = endpoint
        self.socket = _new_data_socket(context, zmq.DEALER)
        self.socket.reconnect_ivl = -1  # a new connection would need a new handshake
        if encrypt:
            _as_curve_client(self.socket, keys, keys.server_public)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self.socket.connect(endpoint)

    def greet(self, name: str, timeout_s: float | None = 30.0) -> None:
        """The handshake. Raises ProtocolError if no holder of the job's key answers in time."""
        nonce = secrets.token_bytes(16)
        first = Seal(self._keys.data, b"worker", b"server")
        self.socket.send(first.close(encode(Hello(name=name, nonce=nonce))))
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)  # nobody listens there, or hangs up
        if self.socket not in {source for source, _ in poller.poll(poll_ms(timeout_s))}:
            raise ProtocolError(f"no parameter server of this job answers at {self.endpoint}")
        payload = first.open(memoryview(self.socket.recv()))
        welcome = _decode_from_server(payload[len(nonce) :])
        if payload[: len(nonce)] != nonce or not isinstance(welcome, Welcome):
            raise ProtocolError(f"whoever answers at {self.endpoint} is not a parameter server of this job")
        key = _session_key(self._keys.data, nonce, welcome.nonce)
        self._seal = Seal(key, b"worker", b"server")

    def send(self, message: ToServer, arrays: Sequence[Array] = ()) -> zmq.MessageTracker | None:
        return _send(self.socket, [self._seal.close(encode(message))], arrays)

    def receive(self) -> tuple[FromServer, list[memoryview]] | None:
        """The next message and its arrays' frames; None if there is none yet."""
        try:
            header, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        message: FromServer = _decode_from_server(self._seal.open(header.buffer))
        return message, [frame.buffer for frame in frames]

    def is_closed(self) -> bool:
        """Whether the connection has been lost; it does not come back."""
        return bool(self.monitor.poll(0))

    def close(self) -> None:
        linger_ms = 0 if self.is_closed() else 2000  # what was sent goes out, if anybody takes it
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger_ms)
