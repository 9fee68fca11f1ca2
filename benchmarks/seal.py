"""What it costs to guard arrays on the way, beside the wire itself: over loopback, and over slower wires.

Two processes, so that both ends work at the same time, as they do between hosts. A wire of some Gb/s is
loopback on which the kernel paces the sender (``SO_MAX_PACING_RATE``).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import multiprocessing
import os
import socket as sockets
import struct
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
import zmq

from benchmarks.figures import Figure, figure
from benchmarks.fuzz import await_welcome
from elasticflow.step.layout import Array
from elasticflow.wire.data import DataLink, DataListener, Received
from elasticflow.wire.door import borrowed
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MasterKeys, make_keys
from elasticflow.wire.messages import Gone, Initial, Pull
from elasticflow.wire.seal import Guard
from elasticflow.wire.sockets import Context

COMMAND = "python -m benchmarks seal"
MEGABYTES = (1, 10, 100)
PARCEL_MB = 4
"""Arrays travel in parcels of so much at most."""
ROUNDS = 25
WIRES_GBITS = (0, 25, 10)
"""0: loopback as it is."""
_SO_MAX_PACING_RATE = 47
_NAMES = {Guard.ARRAYS: "arrays authenticated", Guard.ALL: "all encrypted"}


def _serve(pipe: Connection, keys: MasterKeys) -> None:
    """Takes arrays, and answers each Pull, until the pipe is closed."""
    own, context = keys.of("server-0"), zmq.Context()
    gate = admit_only_members(context, own)
    listener = DataListener(context, own, "127.0.0.1", 0)
    listener.enter(1)
    pipe.send(listener.port)
    poller = zmq.Poller()
    for source in (listener.socket, listener.monitor, pipe.fileno()):
        poller.register(source, zmq.POLLIN)
    while pipe.fileno() not in dict(poller.poll()):
        for news in listener.receive():
            if isinstance(news, Received) and isinstance(news.message, Pull):
                listener.send(news.peer, Gone(latest=0))
        list(listener.closed())
    listener.close()
    gate.stop()
    context.term()


class _Wire:
    """To a server in a process of its own, guarded in one way."""

    def __init__(self, context: Context, keys: MasterKeys, guard: Guard) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, keys), daemon=True)
        self._process.start()
        theirs.close()
        self._port: int = self._pipe.recv()
        way = keys.of("server-0").pass_for("worker-1", 1)
        self._link = DataLink(context, way, f"tcp://127.0.0.1:{self._port}", guard)
        await_welcome(self._link)

    def pace(self, gbits: int) -> None:
        """From now on the sender gets no more through."""
        rate = struct.pack("=Q", gbits * 10**9 // 8 if gbits else 2**64 - 1)
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), borrowed(int(name)) as socket:
                if socket.getpeername()[1:] == (self._port,):
                    socket.setsockopt(sockets.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)

    def send_s(self, parcels: list[Array]) -> float:
        """Seconds until all is there, and opened."""
        since_s = time.perf_counter()
        for parcel in parcels:
            self._link.send(Initial(parcel=0), [parcel])
        self._link.send(Pull(version=0))
        while self._link.receive() is None:
            self._link.socket.poll()
        return time.perf_counter() - since_s

    def close(self) -> None:
        self._link.close()
        self._pipe.send(None)
        self._process.join()
        self._pipe.close()


def _parcels(megabytes: int) -> list[Array]:
    sizes = [PARCEL_MB] * (megabytes // PARCEL_MB) + [megabytes % PARCEL_MB] * (megabytes % PARCEL_MB > 0)
    return [np.random.default_rng(0).integers(0, 255, size << 20, np.uint8) for size in sizes]


def _over_the_wire() -> Iterator[Figure]:
    context: Context = zmq.Context()
    keys = make_keys()
    wires = {guard: _Wire(context, keys, guard) for guard in Guard}
    for gbits in WIRES_GBITS:
        where = f"a wire of {gbits} Gb/s" if gbits else "loopback"
        for wire in wires.values():
            wire.pace(gbits)
        for megabytes in MEGABYTES:
            parcels = _parcels(megabytes)
            found: dict[Guard, list[float]] = {guard: [] for guard in Guard}
            for _ in range(ROUNDS):
                for guard, wire in wires.items():  # in turns
                    found[guard].append(wire.send_s(parcels))
            reference = 1000 * min(found[Guard.HEADERS])
            for guard, name in _NAMES.items():
                what = f"{megabytes} MB over {where}, {name} / headers alone"
                yield figure(what, 1000 * min(found[guard]), "ms", reference, COMMAND)
    for wire in wires.values():
        wire.close()
    context.term()


def _ways() -> dict[str, Callable[[Array], object]]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, key, nonce = AESGCM(bytes(16)), bytes(32), bytes(12)
    return {
        "AES-128-GCM": lambda frame: cipher.encrypt(nonce, memoryview(frame), None),
        "GMAC": lambda frame: cipher.encrypt(nonce, b"", memoryview(frame)),
        "BLAKE2b, keyed": lambda frame: hashlib.blake2b(frame, key=key).digest(),
        "HMAC-SHA-256": lambda frame: hmac.digest(key, memoryview(frame), "sha256"),
    }


def _a_frame() -> Iterator[Figure]:
    """One frame in one thread, beside what it takes to copy it."""
    for megabytes in MEGABYTES:
        frame = np.random.default_rng(0).integers(0, 255, megabytes << 20, np.uint8)
        target = np.empty_like(frame)
        ways = {"copied": lambda it, into=target: np.copyto(into, it), **_ways()}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                since_s = time.perf_counter()
                way(frame)
                found[name].append(time.perf_counter() - since_s)
        copied = 1000 * min(found.pop("copied"))
        for name, taken in found.items():
            what = f"one frame of {megabytes} MB: {name} / copied"
            yield figure(what, 1000 * min(taken), "ms", copied, COMMAND)


def run() -> Iterator[Figure]:
    """Both."""
    yield from _a_frame()
    yield from _over_the_wire()
