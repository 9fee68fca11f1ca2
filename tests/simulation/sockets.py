"""ZeroMQ's sockets as the product uses them, on a simulated network.

A connection keeps the order of its messages, and nothing else is promised: others are quicker or slower, and
at its end what was still under way may be lost, from some message on. The memory of a frame that is not
copied is read when the frame leaves, which may be long after it was handed over; only then is its tracker
done. Who has gone is noticed late.
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from .threads import Hub, Process, Waitable

HANDSHAKES = 3
"""Delays until a connection is there."""
MOST_WAITING = 1000
"""Messages of a socket that nobody takes (ZeroMQ's high-water mark)."""
SELDOM, LATE_S = 1 / 40, 0.08
"""So many messages are so much later than others, at most; not so late that members seem to be silent."""
UNNOTICED, NOTICED_S = 1 / 4, 1.5
"""Of so many connections one side notices the end so much later, at most: the other may be back by then."""
LAGGING = 1 / 3
"""So many connections lag behind, where any do: all that goes over them is late by as much as the first."""
UP, DOWN = 0, 1
POLLIN, NOBLOCK, SNDMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
_AGAIN = zmq.Again()


class Loan:
    """A frame that is sent where it lies. done: its memory is free again."""

    __slots__ = ("view", "data", "done")

    def __init__(self, view: memoryview) -> None:
        self.view: memoryview | None = view
        self.data = b""
        self.done = False

    def take(self) -> None:
        """It leaves: from here on nobody reads that memory."""
        if self.view is not None:
            self.data = bytes(self.view)
            self.view, self.done = None, True


class SimTracker:
    """``zmq.MessageTracker``."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    @property
    def done(self) -> bool:
        return all(part.done for part in self._parts)


class SimFrame:
    """``zmq.Frame``, as it is received."""

    __slots__ = ("buffer", "_fd")

    def __init__(self, data: bytes, fd: int) -> None:
        self.buffer = memoryview(bytearray(data))
        self._fd = fd

    @property
    def bytes(self) -> bytes:
        return bytes(self.buffer)

    def get(self, option: int) -> int:
        assert option == zmq.SRCFD
        return self._fd


class Flight:
    """A message under way."""

    __slots__ = ("parts", "lost")

    def __init__(self, parts: list[Any]) -> None:
        self.parts, self.lost = parts, False

    def take(self) -> None:
        for part in self.parts:
            if type(part) is Loan:
                part.take()


class Way:
    """A connection between a DEALER and a ROUTER.

    dealer, router: None once that end has let go, or was told that the other one has.
    """

    def __init__(self, network: Network, dealer: SimSocket, router: SimSocket) -> None:
        self.network = network
        self.dealer: SimSocket | None = dealer
        self.router: SimSocket | None = router
        self.route = network.new_route()
        self.fd = router.lowest_fd()
        self.dealer_fd = network.new_dealer_fd()
        network.begun[self.dealer_fd] = self
        self.is_open = True
        self.stalled_s = 0.0
        self._lag_s = network.lag()
        self._last_s = [0.0, 0.0]
        self._flights: tuple[deque[Flight], deque[Flight]] = (deque(), deque())

    def send(self, direction: int, parts: list[Any]) -> None:
        if not self.is_open:
            for part in parts:
                if type(part) is Loan:
                    part.take()
            return
        hub, network = self.network.hub, self.network
        flight = Flight(parts)
        self._flights[direction].append(flight)
        begun_s = max(hub.now_s, self.stalled_s)
        arrives_s = max(self._last_s[direction], begun_s + network.delay() + self._lag_s)
        self._last_s[direction] = arrives_s
        for part in parts:
            if type(part) is Loan:
                hub.at(hub.now_s + (arrives_s - hub.now_s) * hub.rng.random(), part.take)
        hub.at(arrives_s, self._arrive, direction)

    def num_waiting(self, direction: int) -> int:
        return len(self._flights[direction])

    def _arrive(self, direction: int) -> None:
        flight = self._flights[direction].popleft()
        socket = self.router if direction == UP else self.dealer
        flight.take()
        if flight.lost or socket is None:
            return
        data = [part.data if type(part) is Loan else part for part in flight.parts]
        if direction == UP:
            socket.receive([self.route, *data], self.fd)
        else:
            socket.receive(data, self.dealer_fd)

    def close(self, by: SimSocket | None, *, lossy: bool) -> None:
        """One end closes it; None: it is cut. lossy: some of what is under way gets lost."""
        if not self.is_open:
            return
        self.is_open = False
        if by is self.dealer:
            self.dealer = None
            self.network.begun.pop(self.dealer_fd, None)
        if by is self.router:
            self._leave_router()
        for direction, receiver in ((UP, self.router), (DOWN, self.dealer)):
            flights = self._flights[direction]
            keep = self.network.hub.rng.randint(0, len(flights)) if lossy else len(flights)
            for place, flight in enumerate(flights):
                flight.take()
                flight.lost = place >= keep
            if receiver is not None:
                hub = self.network.hub
                noticed_s = NOTICED_S * hub.rng.random() if hub.rng.random() < UNNOTICED else 0.0
                end_s = max(hub.now_s + self.network.delay(), self._last_s[direction]) + noticed_s
                hub.at(end_s, self._tell_router if direction == UP else self._tell_dealer)
                if direction == DOWN:
                    self.network.changes(receiver.process, end_s)

    def shut(self, fd: int) -> None:
        """One end shuts it down: it hears of it now, also if it was closed before."""
        self.close(None, lossy=True)
        hub = self.network.hub
        hub.at(hub.now_s, self._tell_dealer if fd == self.dealer_fd else self._tell_router)

    def _leave_router(self) -> None:
        if self.router is not None:
            self.router.ways.pop(self.route, None)
            self.router = None

    def _tell_router(self) -> None:
        router = self.router
        if router is not None:
            self._leave_router()
            router.tell(zmq.EVENT_DISCONNECTED, self.fd)
            router.fds.discard(self.fd)

    def _tell_dealer(self) -> None:
        dealer, self.dealer = self.dealer, None
        self.network.begun.pop(self.dealer_fd, None)
        if dealer is not None:
            dealer.lose(self)


class Network:
    """All connections. delay_s: of a message, about. lag_s: of some connections, at most, beyond that."""

    def __init__(self, hub: Hub, delay_s: float, lag_s: float = 0.0) -> None:
        self.hub, self.delay_s, self.lag_s = hub, delay_s, lag_s
        self.changed_s: dict[Process, float] = {}
        """When a process was told last, or will be, that a connection that it had begun is there, or lost."""
        self.listening: dict[str, SimSocket] = {}
        self.begun: dict[int, Way] = {}
        """By the descriptor of the end that has connected, as long as it takes it to be open."""
        self._next_port = 20_000
        self._next_dealer_fd = 100_000
        self._next_route = hub.rng.randrange(1 << 32)

    def changes(self, process: Process, at_s: float) -> None:
        """It is told then, of one of its connections: of another it may be later."""
        self.changed_s[process] = max(at_s, self.changed_s.get(process, 0.0))

    def of(self, process: Process) -> list[Way]:
        """Its connections that are open."""
        found = []
        for router in self.listening.values():
            for way in router.ways.values():
                if way.is_open and (
                    router.process is process or way.dealer and way.dealer.process is process
                ):
                    found.append(way)
        return found

    def delay(self) -> float:
        drawn = self.hub.rng.random()
        usual_s = self.delay_s * (0.1 + 4 * drawn * drawn * drawn)
        return usual_s + LATE_S * self.hub.rng.random() if self.hub.rng.random() < SELDOM else usual_s

    def lag(self) -> float:
        """Of a new connection."""
        if not self.lag_s or self.hub.rng.random() >= LAGGING:
            return 0.0
        return self.lag_s * self.hub.rng.random()

    def new_dealer_fd(self) -> int:
        """Of the end that has connected: another process's number than that of the end that listens."""
        self._next_dealer_fd += 1
        return self._next_dealer_fd

    def new_route(self) -> bytes:
        self._next_route = (self._next_route + 1) % (1 << 32)
        return b"\0" + self._next_route.to_bytes(4, "big")

    def bind(self, socket: SimSocket, host: str, port: int) -> int:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        endpoint = f"{host}:{port}"
        if endpoint in self.listening:
            raise zmq.ZMQError(errno.EADDRINUSE)
        self.listening[endpoint] = socket
        socket.endpoint = endpoint
        return port


class SimContext:
    """``zmq.Context``."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.inproc: dict[str, SimSocket] = {}

    def socket(self, kind: int) -> SimSocket:
        return SimSocket(self, kind)

    def term(self) -> None:
        self.network.hub.point()


class SimSocket(Waitable):
    """``zmq.Socket``: a ROUTER that listens, a DEALER that connects to one, a PAIR that hears of either."""

    def __init__(self, context: SimContext, kind: int) -> None:
        super().__init__()
        self.context, self.kind = context, kind
        self._network = context.network
        self._hub = context.network.hub
        self.process: Process = self._hub.process
        self.process.at_end.append(self._die)
        self.pending: deque[tuple[list[bytes], int]] = deque()
        """What has come, and nobody has read."""
        self.closed = False
        self.linger = -1
        self.reconnect_ivl = 100
        self.endpoint = ""
        self.monitored: SimSocket | None = None
        self._events = 0
        self._parts: list[Any] = []
        self._target: Way | None = None
        self.ways: dict[bytes, Way] = {}
        """Of a ROUTER, by route."""
        self.fds: set[int] = set()
        self.way: Way | None = None
        self._connecting = False
        self._backlog: deque[list[Any]] = deque()

    def __repr__(self) -> str:
        return f"socket of {self.process}"

    def lowest_fd(self) -> int:
        """As the system hands out descriptors: those of closed connections again."""
        fd = 100
        while fd in self.fds:
            fd += 1
        self.fds.add(fd)
        return fd

    # --- settings --------------------------------------------------------------------------------

    def setsockopt(self, option: int, value: Any) -> None:
        pass

    def getsockopt(self, option: int) -> int:
        return POLLIN if self.pending else 0

    # --- connecting ------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._network.bind(self, host, int(port))

    def bind_to_random_port(self, endpoint: str) -> int:
        return self._network.bind(self, endpoint.removeprefix("tcp://"), 0)

    def connect(self, endpoint: str) -> None:
        self._hub.point()
        if endpoint.startswith("inproc://"):
            watched = self.context.inproc.pop(endpoint)
            watched.monitored = self
            return
        self.endpoint = endpoint.removeprefix("tcp://")
        self._try_to_connect()

    def _try_to_connect(self) -> None:
        self._connecting = True
        self._hub.later(HANDSHAKES * self._network.delay(), self._connect)

    def _connect(self) -> None:
        if self.closed or not self.process.alive:
            return
        router, now_s = self._network.listening.get(self.endpoint), self._hub.now_s
        if router is None:
            self._connecting = False
            self._backlog_lost()
            self._fail(zmq.EVENT_CLOSED)
        elif (frozen_s := max(router.process.frozen_s, self.process.frozen_s)) > now_s:
            self._hub.at(min(frozen_s, now_s + 1.0), self._connect)
        else:
            self._connecting = False
            self._network.changes(self.process, now_s)
            self.way = way = Way(self._network, self, router)
            router.ways[way.route] = way
            router.tell(zmq.EVENT_ACCEPTED, way.fd)
            while self._backlog:
                way.send(UP, self._backlog.popleft())

    def _backlog_lost(self) -> None:
        """Nobody listens: what was said waits for the next try, if there is one."""
        if self.reconnect_ivl < 0:
            for parts in self._backlog:
                for part in parts:
                    if type(part) is Loan:
                        part.take()
            self._backlog.clear()

    def _fail(self, event: int) -> None:
        self.tell(event, 0)
        if self.reconnect_ivl > 0:
            self._connecting = True
            self._hub.later(self.reconnect_ivl / 1000, self._connect)

    def lose(self, way: Way) -> None:
        """Of a DEALER: its connection has closed."""
        if self.way is way and not self.closed:
            self._network.changes(self.process, self._hub.now_s)
            self.way = None
            self._fail(zmq.EVENT_DISCONNECTED)

    # --- monitors --------------------------------------------------------------------------------

    def monitor(self, endpoint: str, events: int) -> None:
        self._events = events
        self.context.inproc[endpoint] = self

    def disable_monitor(self) -> None:
        self.monitored = None

    def tell(self, event: int, value: int) -> None:
        """The monitor, which hears of connections."""
        if self.monitored is not None and self._events & event:
            self.monitored.receive([struct.pack("=Hi", event, value), b""], 0)

    # --- messages --------------------------------------------------------------------------------

    def send_multipart(self, parts: Sequence[bytes], flags: int = 0) -> None:
        for part in parts[:-1]:
            self.send(part, flags | SNDMORE)
        self.send(parts[-1], flags)

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> SimTracker | None:
        if not self._parts:
            self._hub.point()
            self._check_way(data)
        part: Any = bytes(data) if copy else Loan(data)
        self._parts.append(part)
        if not flags & SNDMORE:
            parts, self._parts = self._parts, []
            if self.kind == zmq.ROUTER:
                assert self._target is not None
                self._target.send(DOWN, parts[1:])
            elif self.way is not None:
                self.way.send(UP, parts)
            else:
                self._backlog.append(parts)
        return SimTracker(part) if track else None

    def _check_way(self, first: bytes) -> None:
        """Whether there is a way for a message."""
        if self.kind == zmq.ROUTER:
            self._target = self.ways.get(bytes(first))
            if self._target is None:
                raise zmq.ZMQError(errno.EHOSTUNREACH)
            waiting = self._target.num_waiting(DOWN)
        elif self.way is not None:
            waiting = self.way.num_waiting(UP)
        elif self._connecting:
            waiting = len(self._backlog)
        else:
            raise _AGAIN.with_traceback(None)
        if waiting >= MOST_WAITING and getattr(self, "sndhwm", MOST_WAITING):
            raise _AGAIN.with_traceback(None)

    def receive(self, data: list[bytes], fd: int) -> None:
        """A message has come."""
        if not self.closed and self.process.alive:
            self.pending.append((data, fd))
            self.wake(self._hub)

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[Any]:
        if flags & NOBLOCK:
            self._hub.point()
            if not self.pending:
                raise _AGAIN.with_traceback(None)
        else:
            self._hub.poll([self], None)
        data, fd = self.pending.popleft()
        return data if copy else [SimFrame(part, fd) for part in data]

    def recv(self, flags: int = 0) -> bytes:
        (data,) = self.recv_multipart(flags)
        assert isinstance(data, bytes)
        return data

    def poll(self, timeout: float | None = None) -> int:
        seconds = None if timeout is None else timeout / 1000
        return POLLIN if self._hub.poll([self], seconds) else 0

    # --- the end ---------------------------------------------------------------------------------

    def close(self, linger: int | None = None) -> None:
        self._hub.point()
        self._close(lossy=not (self.linger if linger is None else linger))

    def _die(self) -> None:
        self._close(lossy=self._hub.rng.random() < 0.5)

    def _close(self, *, lossy: bool) -> None:
        if self.closed:
            return
        self.closed = True
        if self._network.listening.get(self.endpoint) is self:
            del self._network.listening[self.endpoint]
        for way in [*self.ways.values(), *([self.way] if self.way else [])]:
            way.close(self, lossy=lossy)
        self.way = None
        self.ways.clear()
        self.pending.clear()


class SimPoller:
    """``zmq.Poller``. files: what waits behind descriptors."""

    def __init__(self, hub: Hub, files: Mapping[int, Any]) -> None:
        self._hub, self._files = hub, files
        self._sources: list[Any] = []

    def register(self, source: Any, flags: int = POLLIN) -> None:
        if source not in self._sources:
            self._sources.append(source)

    def unregister(self, source: Any) -> None:
        self._sources.remove(source)

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        seconds = None if timeout is None else timeout / 1000
        files = self._files
        try:
            found = [files[source] if type(source) is int else source for source in self._sources]
        except KeyError as error:
            raise OSError(errno.EBADF, "is closed", str(error)) from None
        if not self._hub.poll(found, seconds):
            return []
        return [(s, POLLIN) for s, f in zip(self._sources, found, strict=True) if f.pending]
