"""A ROUTER, and which of its connections have closed."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from elasticflow.step.layout import Array
from elasticflow.wire.door import Door, block, borrowed, room, shut_down
from elasticflow.wire.gate import DOMAIN
from elasticflow.wire.nearby import keep_close
from elasticflow.wire.sending import send_frames
from elasticflow.wire.sockets import HANG_UP_S, NOBLOCK, Socket, monitor_of, poll_ms, readable

HANDSHAKE_MS = 5000
"""A connection that has not proved itself by then is closed."""
BACKLOG = 1024
TURN = 1000
"""So many messages are read at most before others get their turn."""


class Router:
    """A ROUTER, and which of its connections have closed.

    The monitor names a connection by its descriptor, messages name it by their route, and carry the
    descriptor. It is free for the next connection as soon as one closes, so what is read of the old one
    after that must not be taken for the new one's: descriptors that are open are kept account of, and
    routes, which ZeroMQ numbers, tell which of two is the newer one.

    ``refused`` counts connections that were closed before they had got a word through: strangers', mostly. Of
    these there are only so many at a time, see ``Door``.
    """

    def __init__(self, socket: Socket, host: str, port: int, max_bytes: int) -> None:
        self.socket = socket
        # Otherwise what is sent to one who has gone would be dropped without a word.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.zap_domain = DOMAIN
        socket.maxmsgsize = max_bytes
        socket.handshake_ivl = HANDSHAKE_MS
        socket.backlog = BACKLOG
        self.refused = 0
        self.monitor = monitor_of(socket, zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._door = Door(room())
        self._listening = -1
        self._blocked: frozenset[str] = frozenset()
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
            if not readable(self.socket):  # an exception takes ten times as long
                self._bury()
                return
            try:
                route, first, *others = self.socket.recv_multipart(NOBLOCK, copy=False)
            except ValueError:  # a route and nothing else
                continue
            name = route.bytes
            if name not in self._fds:
                self._enter(name, first)
            yield name, first, others

    def closed(self) -> Iterator[bytes]:
        """Routes whose connections have closed, and of which all has been read."""
        self._read_events()
        if self._dying and not readable(self.socket):
            self._bury()
        while self._closed:
            yield self._closed.pop(0)

    def send(self, route: bytes, head: Sequence[bytes], arrays: Sequence[Array] = ()) -> Any:
        """The tracker, if any; False if the connection has gone. Who takes nothing for long is hung up on."""
        try:
            return send_frames(self.socket, [route, *head], arrays)
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
        shut_down(fd)

    def close(self, linger_ms: int) -> None:
        """linger_ms: how long what was sent may take to go out; 0: nothing more goes out."""
        if self.socket.closed:
            return
        if not linger_ms:
            self._hang_up_on_all()
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger_ms)

    def _hang_up_on_all(self) -> None:
        """See ``HANG_UP_S``."""
        self._read_events()
        for fd in self._open:
            shut_down(fd)
        until_s = time.monotonic() + HANG_UP_S
        while self._open and self.monitor.poll(poll_ms(until_s - time.monotonic())):
            self._read_events()

    def _read_events(self) -> None:
        if self._door.is_quiet and not self._blocked and not readable(self.monitor):
            return  # as it is at nearly every turn of a loop
        too_many, now_s = [], time.monotonic()
        while readable(self.monitor):
            event, value = struct.unpack("=Hi", self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_LISTENING:
                self._listening = value
                continue
            if event == zmq.EVENT_ACCEPTED:
                self._open.add(value)
                if not self._door.come(value, _address_of(value), now_s):
                    too_many.append(value)
                continue
            self._open.discard(value)
            self._door.go(value)
            route = self._routes.pop(value, None)
            if route is None:
                self.refused += 1
            else:
                self._dying.append(route)

        for fd in filter(self._door.holds, too_many):
            shut_down(fd)
        if (blocked := self._door.blocked(now_s)) != self._blocked and self._listening >= 0:
            self._blocked = blocked
            with contextlib.suppress(OSError):  # a kernel without such filters, or an address that is no IPv4
                block(self._listening, blocked)

    def _enter(self, route: bytes, first: zmq.Frame) -> None:
        """The first message on a connection: it is open, or has closed already, and was taken for silent."""
        self._read_events()
        fd = first.get(zmq.SRCFD)
        assert isinstance(fd, int)
        self._fds[route] = fd
        keep_close(fd)
        self._door.go(fd)
        late: bytes | None = route
        if fd in self._open:
            late = self._routes.get(fd)
            if late is None or is_newer(route, late):
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


def _address_of(fd: int) -> str:
    """Whence a connection comes; "" if it has closed already."""
    with contextlib.suppress(OSError), borrowed(fd) as connection:
        return str(connection.getpeername()[0])
    return ""


def is_newer(one: bytes, other: bytes) -> bool:
    """ZeroMQ numbers routes in the order in which connections are made, modulo 2^32."""
    difference = int.from_bytes(one[-4:], "big") - int.from_bytes(other[-4:], "big")
    return 0 < difference % 2**32 < 2**31
