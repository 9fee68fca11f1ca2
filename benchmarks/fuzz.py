"""A million mutated messages against both sockets, from strangers and from members gone mad."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import secrets
import socket as sockets
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import zmq

from benchmarks.figures import Figure, figure
from elasticflow.api import SGD
from elasticflow.checkpoint import Part
from elasticflow.master.events import ClockEvent, ScaleEvent, StopEvent
from elasticflow.master.state import MasterState
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.control import ControlListener, control_link, signed_frame
from elasticflow.wire.data import DataLink, DataListener, encoded
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import CLIENT, MasterKeys, MemberKeys, Pass, make_keys
from elasticflow.wire.messages import (
    Answer,
    Assignment,
    Beat,
    Diverged,
    Failed,
    Faulty,
    Fetch,
    FromMaster,
    Grant,
    Heartbeat,
    Hello,
    Initial,
    Inspected,
    Join,
    Keep,
    Leaving,
    Lend,
    Lost,
    Mapped,
    Norms,
    Offer,
    Progress,
    Pull,
    Push,
    Quit,
    Ready,
    Safe,
    ScaleRequest,
    ServerEnded,
    ServerInfo,
    Skipped,
    Spec,
    StatusRequest,
    StopRequest,
    ToMaster,
    ToServer,
    Troubled,
    Uninitialised,
    Usage,
    Version,
    Written,
    decode_from_master,
    encode,
)  # fmt: skip
from elasticflow.wire.seal import NONCE_BYTES, Guard, Seal, signed
from elasticflow.wire.sockets import Context, Socket
from elasticflow_ps.loans import this_host
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.server import ParameterServer

COMMAND = "python -m benchmarks fuzz"
MESSAGES = 1_000_000
HOST = "127.0.0.1"
WAIT_S = 60
ENTRIES = (Entry("w", (1000,), "float32", Rule.UPDATE), Entry("report", (1,), "float64", Rule.REPORT))
LAYOUT = Layout(ENTRIES)
SPEC = Spec(
    framework="none", entries=ENTRIES, optimizer=SGD(lr=0.5), metrics=(),
    num_records=1 << 30, num_test=0, data_signature="",
)  # fmt: skip
SCHEDULE = Schedule(num_records=1 << 30, num_test=0, batch_size=1, num_slices=1, epochs=1)
PART = Part(file="generation-1-server-0.h5", num_bytes=1, chunks={0: {}}, frame="0" * 64)
NAME = "worker-1"

TO_MASTER: tuple[ToMaster, ...] = (
    Join(name=NAME, role="worker", host=HOST, pid=7, fingerprint={"numpy": "2"}, spec=SPEC),
    Join(name="server-0", role="server", host=HOST, pid=8, endpoint="tcp://127.0.0.1:1"),
    Ready(name=NAME, generation=1, started_s=1.5),
    Heartbeat(name=NAME, tick=3, generation=1, slice_s=0.01, usage=Usage(computing_s=1.0)),
    Leaving(name=NAME, usage=Usage()),
    Failed(name=NAME, kind="ValueError", text="no", traceback="Traceback"),
    Faulty(name=NAME, tick=3, slice=0, rows=(5,), text="no", traceback="Traceback"),
    Progress(name="server-0", generation=1, version=4, loss=0.5, evaluations=((3, (0.5,)),), lr=0.1),
    Lost(name=NAME, member="server-0"),
    Written(name="server-0", generation=1, tick=3, last=False, part=PART),
    Troubled(name="server-0", text="no space"),
    Offer(name="server-0", generation=2, held=((0, 4),)),
    Diverged(name="server-0", generation=1, tick=3, parameter="w"),
    Skipped(name="server-0", generation=1, tick=3),
    Inspected(name=NAME, tick=3, slice=0, parameter="w", cost="nan"),
    ServerEnded(name=NAME, member="server-3", failed=False, text="was killed by SIGKILL"),
    StatusRequest(),
    ScaleRequest(workers=2),
    Grant(number=1, workers=2, why="spare"),
    StopRequest(),
)
HELLO = Hello(name=NAME, generation=1, nonce=bytes(NONCE_BYTES))
TO_SERVER: tuple[ToServer, ...] = (
    Pull(version=3, have=2),
    Push(tick=3, parcel=0, level=0, index=0, lr=0.5, slice_s=0.01, pull=True),
    Initial(parcel=0),
    Lend(number=1, host=this_host(), pid=1, fd=3, num_bytes=4096, secret=bytes(16)),
    Mapped(number=1),
    Norms(tick=3, norms=((0, 1.5),), round=1, tensors=((0, 0, 1.5, 0.5),)),
    Fetch(place=0, version=3),
    Keep(place=0, version=3, parcel=0),
    Safe(place=0, version=3),
)


def _headers() -> list[bytes]:
    """Of what a member may send, before they are sealed: messages with so many arrays, alone and in pairs."""
    with_arrays = [[(message, [np.zeros(1)] * num)] for message in TO_SERVER for num in range(3)]
    pairs = [one + other for one, other in zip(with_arrays, with_arrays[1:], strict=False)]
    return [encoded(parts)[0] for parts in with_arrays + pairs]


# --- mutations -----------------------------------------------------------------------------------


class Mutator:
    """Bytes that were messages once."""

    def __init__(self, rng: random.Random, corpus: list[bytes]) -> None:
        self._rng, self._corpus = rng, corpus
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip, self._flip, self._cut, self._repeat, self._splice, self._inflate, self._scramble,
            self._nest,
        )  # fmt: skip

    def __call__(self) -> bytes:
        data = self._rng.choice(self._corpus)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            data = self._rng.choice(self._ways)(data)
        return data

    def _place(self, data: bytes) -> int:
        return self._rng.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(self._rng.choice((1, 1, 2, 8))):
            changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def _cut(self, data: bytes) -> bytes:
        first, last = sorted((self._place(data), self._place(data)))
        return self._rng.choice((data[:first], data[first:], data[:first] + data[last:]))

    def _repeat(self, data: bytes) -> bytes:
        first, last = sorted((self._place(data), self._place(data)))
        return data[:last] + data[first:last] * self._rng.choice((1, 1, 2, 50)) + data[last:]

    def _splice(self, data: bytes) -> bytes:
        other = self._rng.choice(self._corpus)
        return data[: self._place(data)] + other[self._place(other) :]

    def _inflate(self, data: bytes) -> bytes:
        """A length or a number that is huge: MessagePack's and ZMTP's."""
        size = self._rng.choice((2**63 - 1, 2**64 - 1, 2**32, 2**31 - 1, 1 << 27, self._rng.getrandbits(64)))
        eight, four = size.to_bytes(8, "big"), (size % 2**32).to_bytes(4, "big")
        kind = self._rng.choice(
            (b"\xcf", b"\xd3", b"\xcb", b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\x02", b"\x06")
        )
        at = self._place(data)
        return data[:at] + kind + (four if kind in b"\xdd\xdf\xdb\xc6" else eight) + data[at + 1 :]

    def _scramble(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + self._rng.randbytes(self._rng.choice((1, 4, 30)))

    def _nest(self, data: bytes) -> bytes:
        at = self._place(data)
        return (
            data[:at]
            + self._rng.choice((b"\x91", b"\x81\xa1x")) * self._rng.choice((5, 50, 3000))
            + data[at:]
        )


# --- who is attacked, in processes of their own ------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True):
    """What became of a target. begun_mb, peak_mb: its memory when the attack began, and at most."""

    dropped: int
    refused: int
    begun_mb: float
    peak_mb: float
    error: str


def _peak_mb() -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


class _Orders:
    """What a server needs of its line to the master; here a pipe to whoever attacks it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.wake_fd = pipe.fileno()
        self.begun_mb = 0.0

    def send(self, message: ToMaster) -> None:
        if isinstance(message, Join):
            self._pipe.send(message.endpoint)

    def start_heartbeats(self) -> None:
        pass

    def received(self) -> list[FromMaster]:
        message = self._pipe.recv()
        if message == "begin":
            self.begun_mb = _peak_mb()
            return []
        assert isinstance(message, (Assignment, Quit))
        return [message]


def _serve_data(pipe: Connection, keys: MasterKeys, folder: str) -> None:
    """A parameter server, with all that belongs to it."""
    settings = MemberSettings(
        name="server-0", role="server", host=HOST, master="", run_dir=folder, program="", seed=0,
        threads=1, batch_size=1, num_slices=1, heartbeat_s=1, lost_s=60, encrypt_data=False, timeline=False,
    )  # fmt: skip
    context: Context = zmq.Context()
    own = keys.of("server-0")
    gate = admit_only_members(context, own)
    listener = DataListener(context, own, HOST, 0)
    orders = _Orders(pipe)
    server = ParameterServer(settings, DirectoryStorage(folder), context, listener, orders)
    error = ""
    try:
        server.run()
    except Exception:  # noqa: BLE001  (any of them is what is looked for)
        error = traceback.format_exc()
    beat = server.heartbeat()
    pipe.send(Outcome(beat.dropped, listener.refused, orders.begun_mb, _peak_mb(), error))
    server.close()
    listener.close()
    gate.stop()
    context.term()


def _living_master(now_s: float) -> MasterState:
    state = MasterState(Config(workers="2", batch_size=8, slices=8, checkpoint_every="1h", snapshot_s=0))
    state.start(now_s)
    for message in TO_MASTER[:4]:
        state.handle(message, now_s)  # type: ignore[arg-type]
    return state


def _serve_control(pipe: Connection, keys: MasterKeys, folder: str) -> None:
    """A master's socket and its decisions."""
    context: Context = zmq.Context()
    gate = admit_only_members(context, keys.of("master"))
    listener = ControlListener(context, keys, HOST, 0)
    pipe.send(f"tcp://{HOST}:{listener.port}")
    begun_mb, took, error = 0.0, 0, ""
    state = _living_master(time.monotonic())
    poller = zmq.Poller()
    for source in (listener.socket, listener.monitor, pipe.fileno()):
        poller.register(source, zmq.POLLIN)
    try:
        while True:
            if pipe.fileno() in dict(poller.poll()):
                if pipe.recv() != "begin":
                    break
                begun_mb = _peak_mb()
            for route, message in listener.receive():
                took += 1
                now_s = time.monotonic()
                if isinstance(message, StatusRequest):
                    listener.send(route, Answer(status={"news": took}))
                elif isinstance(message, ScaleRequest):
                    state.handle(ScaleEvent(max(1, min(message.workers, 8))), now_s)
                elif isinstance(message, Grant):
                    state.handle(ScaleEvent(max(1, min(message.workers, 8)), grant=message.number), now_s)
                elif isinstance(message, StopRequest):
                    state.handle(StopEvent(message.reason), now_s)
                else:
                    if isinstance(message, Heartbeat):
                        listener.send(route, Beat(incarnation=1))
                    state.handle(message, now_s)
                if state.ended or took % 1000 == 0:  # no master for long: more of what it does is tried
                    state = _living_master(now_s)
            list(listener.closed())
            state.handle(ClockEvent(), time.monotonic())
    except Exception:  # noqa: BLE001  (any of them is what is looked for)
        error = traceback.format_exc()
    pipe.send(Outcome(listener.dropped, listener.refused, begun_mb, _peak_mb(), error))
    listener.close(linger_ms=0)
    gate.stop()
    context.term()


class Target:
    """A process with a socket to attack."""

    def __init__(self, serve: Callable[[Connection, MasterKeys, str], None], keys: MasterKeys) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._folder = tempfile.TemporaryDirectory()
        self._process = spawn.Process(target=serve, args=(theirs, keys, self._folder.name), daemon=True)
        self._process.start()
        theirs.close()
        self.endpoint: str = self._hear()
        self.port = int(self.endpoint.rsplit(":", 1)[1])

    def _hear(self) -> Any:
        if not self._pipe.poll(WAIT_S):
            raise RuntimeError("the target of the attack does not answer")
        return self._pipe.recv()

    def tell(self, message: Any) -> None:
        self._pipe.send(message)

    def finish(self) -> Outcome:
        """Ends the process; raises if it did not live to the end."""
        self.tell(Quit(reason="the attack is over"))
        outcome = self._hear()
        assert isinstance(outcome, Outcome)
        self._process.join(WAIT_S)
        self._process.close()
        self._pipe.close()
        self._folder.cleanup()
        if outcome.error:
            raise RuntimeError(outcome.error)
        return outcome


def await_welcome(link: DataLink) -> None:
    """Raises RuntimeError if the link is not greeted."""
    while not link.greeted:
        if not zmq.select([link.socket, link.monitor], [], [], timeout=WAIT_S)[0] or link.is_closed():
            raise RuntimeError("a member is not greeted")
        link.receive()


# --- a healthy member, served all the time -----------------------------------------------------------


class Healthy(threading.Thread):
    """Asks, and waits for the answer, again and again. ``error`` says what went wrong, if anything did."""

    def __init__(self) -> None:
        super().__init__(name="healthy")
        self.rounds, self.longest_s, self.error = 0, 0.0, ""
        self._ending = threading.Event()

    def ask(self) -> None:
        """One question, and its answer."""
        raise NotImplementedError

    def clean_up(self) -> None:
        """Lets go of all sockets."""

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                since_s = time.perf_counter()
                self.ask()
                self.longest_s = max(self.longest_s, time.perf_counter() - since_s)
                self.rounds += 1
                self._ending.wait(0.002)  # a step is not done in no time
        except Exception:  # noqa: BLE001  (any of them is what is looked for)
            self.error = traceback.format_exc()
        self.clean_up()

    def wait_for(self, rounds: int) -> None:
        """Until it has been served so many times more, or has failed."""
        until = self.rounds + rounds
        while self.rounds < until and self.is_alive():
            self.join(0.01)

    def finish(self) -> None:
        """Raises RuntimeError if it was not served all the time."""
        self._ending.set()
        self.join()
        if self.error:
            raise RuntimeError(self.error)


class HealthyMember(Healthy):
    """Heartbeats."""

    def __init__(self, keys: MemberKeys, endpoint: str) -> None:
        super().__init__()
        self._context: Context = zmq.Context()
        self._keys, self._socket = keys, control_link(self._context, keys, endpoint)

    def ask(self) -> None:
        self._socket.send(signed_frame(self._keys, TO_MASTER[3]))
        if not self._socket.poll(WAIT_S * 1000):
            raise RuntimeError("the healthy member has not been served")
        assert decode_from_master(self._socket.recv()) == Beat(incarnation=1)

    def clean_up(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


class HealthyWorker(Healthy):
    """Trains. checks: that the parameters are what its own pushes make of them, bit by bit."""

    def __init__(self, way: Pass, endpoint: str, checks: bool) -> None:
        super().__init__()
        self._context: Context = zmq.Context()
        self._link = DataLink(self._context, way, endpoint, Guard.HEADERS)
        (self._parcel,) = parcels_of(LAYOUT, spread(LAYOUT, 1)[0])
        self._checks = checks
        self._values = [np.zeros(len(span), span.dtype) for span in self._parcel.state]
        self._tick = -1

    def ask(self) -> None:
        if self._tick >= 0:
            self._push()
        else:
            await_welcome(self._link)
            self._link.send(Pull(version=-1))
        self._collect()

    def _wait(self) -> tuple[Any, list[memoryview]] | None:
        received = self._link.receive()
        if received is None:
            ready = zmq.select([self._link.socket, self._link.monitor], [], [], timeout=WAIT_S)[0]
            if not ready or self._link.is_closed():
                raise RuntimeError("the healthy worker has not been served")
        return received

    def _push(self) -> None:
        spans = self._parcel.pushed(Kind.TRAIN)
        gradients = [np.full(len(span), self._tick % 7 - 3, span.dtype) for span in spans]
        for value, gradient in zip(self._values, gradients, strict=False):
            value -= np.float32(0.5) * gradient
        push = Push(tick=self._tick, parcel=0, level=0, index=0, slice_s=0.001, pull=True)
        self._link.send(push, gradients)

    def _collect(self) -> None:
        while True:
            message, frames = self._wait() or (None, [])
            if isinstance(message, Uninitialised):
                self._link.send(Initial(parcel=0), self._values)
            elif isinstance(message, Version) and message.version > self._tick:
                for value, frame in zip(self._values, frames, strict=True):
                    if self._checks and value.tobytes() != bytes(frame):
                        raise RuntimeError(f"version {message.version} is not what it must be")
                self._tick = message.version
                return

    def clean_up(self) -> None:
        self._link.close(linger_ms=0)
        self._context.term()


# --- attackers -----------------------------------------------------------------------------------


def record(connect: Callable[[str], Any], port: int) -> tuple[list[bytes], list[bytes]]:
    """What goes over a connection to that port, raw, until ``connect`` to another endpoint is done."""
    there: list[bytes] = []
    back: list[bytes] = []
    with sockets.create_server((HOST, 0)) as between:
        thread = threading.Thread(target=_between, args=(between, port, there, back))
        thread.start()
        connect(f"tcp://{HOST}:{between.getsockname()[1]}")
        thread.join()
    return there, back


def _between(between: sockets.socket, port: int, there: list[bytes], back: list[bytes]) -> None:
    inner, _ = between.accept()
    outer = sockets.create_connection((HOST, port))
    with inner, outer, contextlib.suppress(ConnectionError):  # a reset is an end as well
        poller = zmq.Poller()
        poller.register(inner, zmq.POLLIN)
        poller.register(outer, zmq.POLLIN)
        while True:
            for fd, _ in poller.poll():
                source, target, kept = (inner, outer, there) if fd == inner.fileno() else (outer, inner, back)
                data = source.recv(1 << 16)
                if not data:
                    return
                kept.append(data)
                target.sendall(data)


def throw_streams(port: int, mutate: Mutator, count: int) -> int:
    """Strangers: each connects, sends bytes, and goes. How many."""
    for _ in range(count):
        with contextlib.suppress(OSError), sockets.create_connection((HOST, port)) as connection:
            connection.settimeout(WAIT_S)
            connection.sendall(mutate())
    return count


def _throw(socket: Socket, frames: list[bytes]) -> bool:
    """Waits for its turn; False if the connection has gone."""
    if not socket.poll(1000, zmq.POLLOUT):
        return False
    while socket.poll(0):
        socket.recv_multipart()
    with contextlib.suppress(zmq.Again):
        socket.send_multipart(frames, zmq.NOBLOCK)
    return True


def throw_frames(
    new_socket: Callable[[], Socket], mutate: Callable[[], bytes], rng: random.Random, count: int
) -> int:
    """Somebody past the gate, or a member gone mad: messages of some frames. How many."""
    socket = new_socket()
    for _ in range(count):
        frames = [mutate() for _ in range(rng.choice((1, 1, 1, 1, 2, 5)))]
        if not _throw(socket, frames):
            socket.close(linger=0)
            socket = new_socket()
    socket.close(linger=WAIT_S * 1000)
    return count


def _greeted(context: Context, way: Pass, endpoint: str) -> DataLink:
    link = DataLink(context, way, endpoint, Guard.HEADERS)
    await_welcome(link)
    link.socket.sndhwm = 1000
    return link


def throw_sealed(link: DataLink, mutate: Mutator, rng: random.Random, count: int) -> int:
    """A member gone mad: what it says is no message, but sealed. How many."""
    gradient = bytes(4 * ENTRIES[0].size)
    for _ in range(count):
        arrays = rng.choice(([], [], [gradient, bytes(8)], [gradient], [rng.randbytes(rng.randrange(100))]))
        if not _throw(link.socket, [link._seal.close(mutate()), *arrays]):
            raise RuntimeError("a member was hung up on, whose seals were right")
    return count


def throw_forged(new_link: Callable[[], DataLink], mutate: Mutator, rng: random.Random, count: int) -> int:
    """Somebody in between: changes what a member has sealed. How many."""
    for _ in range(count):
        link = new_link()
        right = link._seal.close(rng.choice(_headers()))
        wrong = mutate._flip(right) if rng.random() < 0.8 else mutate._cut(right)[:-1]
        if wrong != right:
            _throw(link.socket, [wrong])
            if not link.monitor.poll(WAIT_S * 1000):
                raise RuntimeError("a forged message has not ended the connection")
        link.close(linger_ms=0)
    return count


class Attack(msgspec.Struct, frozen=True):
    """What was thrown at a target, and what became of it and of the healthy one.

    calm_s, longest_s: the healthy one's longest wait before the attack and during it.
    """

    thrown: int
    seconds: float
    outcome: Outcome
    rounds: int
    calm_s: float
    longest_s: float


def _attack(target: Target, healthy: Healthy, throw: Callable[[], int]) -> Attack:
    healthy.start()
    healthy.wait_for(20)
    healthy.longest_s = 0.0
    healthy.wait_for(200)
    calm_s, healthy.longest_s = healthy.longest_s, 0.0
    target.tell("begin")
    rounds, since_s = healthy.rounds, time.perf_counter()
    thrown = throw()
    seconds = time.perf_counter() - since_s
    healthy.wait_for(20)  # by then what was queued is read
    healthy.finish()
    return Attack(thrown, seconds, target.finish(), healthy.rounds - rounds, calm_s, healthy.longest_s)


def attack_data(rng: random.Random, count: int, mad: bool) -> Attack:
    """The data plane. mad: by a member whose seals are right; else by strangers, and people in between."""
    keys = make_keys()
    own = keys.of("server-0")
    target = Target(_serve_data, keys)
    info = ServerInfo(name="server-0", endpoint=target.endpoint, chunks=tuple(spread(LAYOUT, 1)[0]))
    target.tell(
        Assignment(generation=1, schedule=SCHEDULE, spec=SPEC, seed=0, servers=(info,), cut_every_steps=0)
    )
    context: Context = zmq.Context()
    healthy = HealthyWorker(own.pass_for(NAME, 1), target.endpoint, checks=not mad)
    payloads = Mutator(rng, _headers())

    def link(endpoint: str = target.endpoint) -> DataLink:
        return _greeted(context, own.pass_for(f"worker-{rng.randrange(2, 20)}", 1), endpoint)

    way = own.pass_for(NAME, 1)

    def listened_in() -> Socket:
        socket: Socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.plain_username, socket.plain_password = way.user, way.password
        socket.connect(target.endpoint)
        return socket

    def speak(endpoint: str) -> None:
        once = link(endpoint)
        for message in TO_SERVER[:2]:
            once.send(message)
        once.close()

    def throw() -> int:
        if mad:
            member = link()
            thrown = throw_sealed(member, payloads, rng, count)
            member.close()
            return thrown
        there, back = record(speak, target.port)
        streams = Mutator(rng, [b"".join(there), b"".join(back), *there, *back])
        hello = Seal(way.key, b"worker", b"server").close(encode(HELLO))
        sealed = Seal(b"k" * 32, b"worker", b"server")
        frames = Mutator(rng, [hello, *there, *(sealed.close(header) for header in _headers())])
        thrown = throw_streams(target.port, streams, count // 20)
        thrown += throw_forged(link, payloads, rng, count // 200)
        return thrown + throw_frames(listened_in, frames, rng, count - thrown)

    attack = _attack(target, healthy, throw)
    context.destroy(linger=0)
    return attack


def _signed(key: bytes, mutate: Mutator) -> bytes:
    return signed(key, mutate())


def attack_control(rng: random.Random, count: int, mad: bool) -> Attack:
    """The control plane. mad: by a member; else by strangers."""
    keys = make_keys()
    target = Target(_serve_control, keys)
    context: Context = zmq.Context()
    healthy = HealthyMember(keys.of(NAME), target.endpoint)

    def link(endpoint: str = target.endpoint) -> Socket:
        return control_link(context, keys.of(CLIENT), endpoint)

    def speak(endpoint: str) -> None:
        socket = link(endpoint)
        socket.send(signed_frame(keys.of(CLIENT), StatusRequest()))
        socket.poll(WAIT_S * 1000)
        socket.close(linger=0)

    def throw() -> int:
        if mad:
            left = count
            for name in (NAME, "server-0", CLIENT):
                said = [each for each in TO_MASTER if getattr(each, "name", CLIENT) == name]
                payloads, own = Mutator(rng, [encode(each) for each in said]), keys.of(name).own
                share = left if name == CLIENT else count // 3
                left -= throw_frames(link, partial(_signed, own, payloads), rng, share)
            return count
        there, back = record(speak, target.port)
        streams = Mutator(rng, [b"".join(there), b"".join(back), *there, *back])
        return throw_streams(target.port, streams, count)

    attack = _attack(target, healthy, throw)
    context.destroy(linger=0)
    return attack


def run(messages: int = MESSAGES, seed: int | None = None) -> Iterator[Figure]:
    """All four attacks. Raises RuntimeError if a target dies, or a healthy member is not served."""
    seed = secrets.randbits(32) if seed is None else seed
    rng = random.Random(seed)
    for plane, attack, who, mad, share in (
        ("data", attack_data, "strangers", False, 0.35),
        ("data", attack_data, "a mad member", True, 0.35),
        ("control", attack_control, "strangers", False, 0.05),
        ("control", attack_control, "a mad member", True, 0.25),
    ):
        one = attack(rng, round(messages * share), mad)
        name, end = f"{plane}, {who}: ", one.outcome
        yield figure(
            name + "thrown / dropped, refused", one.thrown, "", end.dropped + end.refused, COMMAND,
            f"{end.dropped} messages, {end.refused} connections; the rest went down with connections that "
            f"were hung up, or made sense; {one.thrown / one.seconds:.0f} a second, seed {seed}",
        )  # fmt: skip
        yield figure(name + "peak memory / before", end.peak_mb, "MB", end.begun_mb, COMMAND)
        yield figure(
            name + "longest wait of the healthy / before", 1000 * one.longest_s, "ms", 1000 * one.calm_s,
            COMMAND, f"served {one.rounds} times, {os.cpu_count()} cores",
        )  # fmt: skip
