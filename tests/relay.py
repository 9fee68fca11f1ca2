"""A TCP relay on the data connections of a run: it delays, cuts into pieces, pauses and resets.

Workers reach servers, and servers each other, by a SOCKS proxy, which is this relay: so it knows where
each connection is to lead, and neither end knows of it. ``relayed/sitecustomize.py`` leads them here.

What the relay does not take waits in the sender's own queue: it reads no more than it is about to hand
on, and has the kernel keep little.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket as sockets
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "relayed"
VARIABLE = "ELASTICFLOW_TEST_RELAY"
KERNEL_BYTES = 256 << 10
"""What the kernel is to keep on either side. With much less, a busy machine makes a crawl of it."""
CONNECTED = b"\5\0\0\1" + bytes(6)
RESET = struct.pack("ii", 1, 0)
"""A linger with which a connection ends with RST instead of FIN."""


class Manner(NamedTuple):
    """How both directions of a connection are handed on.

    pieces: of so many bytes at most, each time one of these at random. delay_s: before a piece, at most.
    pause_every: bytes, on average, between pauses of ``pause_s``, in which nothing is taken; 0: no pauses.
    until: after so many bytes all goes in large pieces, without delays and pauses; None: never.
    reset: after so many bytes both ends hear that the connection was reset; None: never.
    """

    pieces: tuple[int, ...] = (1 << 16,)
    delay_s: float = 0.0
    pause_every: int = 0
    pause_s: float = 0.0
    until: int | None = None
    reset: int | None = None


PLAIN = Manner()


class Relay:
    """Runs in a thread of its own while it is a context manager.

    manner: of each connection, or a function of its number, from 0. connections, handed_on (bytes),
    resets: what there has been until now.
    """

    def __init__(self, manner: Manner | Callable[[int], Manner] = PLAIN, seed: int = 0) -> None:
        self._manner: Callable[[int], Manner] = manner if callable(manner) else lambda number: manner
        self._seed = seed
        self.connections = self.handed_on = self.resets = 0
        self._lines: dict[int, _Line] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._socket = sockets.create_server(("127.0.0.1", 0), backlog=1024)
        _keep_little(self._socket)
        self.at = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="relay", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead the processes of a run here."""
        others = [path for path in (os.environ.get("PYTHONPATH"),) if path]
        return {"PYTHONPATH": os.pathsep.join([str(FOLDER), *others]), VARIABLE: self.at}

    def __enter__(self) -> Relay:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._do(self._over.set)
        self._thread.join()

    # --- what tests do to it ---------------------------------------------------------------------

    def hold(self) -> None:
        """From now on nothing is taken from anybody."""
        self._do(self._flows.clear)

    def go_on(self) -> None:
        """Ends ``hold``."""
        self._do(self._flows.set)

    def reset(self) -> int:
        """Has all connections that there are end with RST, at both ends. Returns how many there were."""
        before = self.resets

        def reset() -> None:
            for line in list(self._lines.values()):
                self._reset(line)

        self._do(reset)
        return self.resets - before

    def _do(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()

    # --- its thread ------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._flows, self._over = asyncio.Event(), asyncio.Event()
        self._flows.set()
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=KERNEL_BYTES)
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, to its end. Whatever goes wrong with it ends it."""
        number, self.connections = self.connections, self.connections + 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        ends = [writer]
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            there = await _connect(reader, writer)
            ends.append(there[1])
            self._lines[number] = line = _Line(self._manner(number), ends)
            writer.write(CONNECTED)  # now whoever asked may know that it is
            await asyncio.gather(
                self._hand_on(line, reader, there[1], random.Random(f"{self._seed}, {number}, there")),
                self._hand_on(line, there[0], writer, random.Random(f"{self._seed}, {number}, back")),
            )
        self._lines.pop(number, None)
        for end in ends:
            end.transport.abort()
        self._serving.discard(task)

    async def _hand_on(
        self, line: _Line, source: StreamReader, sink: StreamWriter, rng: random.Random
    ) -> None:
        """One direction, until its end, which is handed on too."""
        manner = line.manner
        pauses = _places(manner.pause_every, rng)
        pause_at, taken = next(pauses), 0
        sink.transport.set_write_buffer_limits(high=0)
        while True:
            throttled = manner.until is None or taken < manner.until
            if throttled and manner.delay_s:
                await asyncio.sleep(rng.random() * manner.delay_s)
            await self._flows.wait()
            data = await source.read(rng.choice(manner.pieces) if throttled else 1 << 20)
            if not data:
                break
            sink.write(data)
            await sink.drain()
            taken += len(data)
            self.handed_on += len(data)
            if manner.reset is not None and taken >= manner.reset:
                self._reset(line)
            if throttled and pause_at is not None and taken >= pause_at:
                await asyncio.sleep(manner.pause_s)
                pause_at = next(pauses)
        sink.write_eof()

    def _reset(self, line: _Line) -> None:
        self.resets += 1
        for end in line.ends:
            end.get_extra_info("socket").setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, RESET)
            end.transport.abort()


class _Line(NamedTuple):
    """A connection through the relay."""

    manner: Manner
    ends: list[StreamWriter]


def _places(every: int, rng: random.Random) -> Iterator[int | None]:
    """After how many bytes there is a pause; None: never."""
    at = 0
    while every:
        at += rng.randint(1, 2 * every)
        yield at
    while True:
        yield None


def _keep_little(socket: sockets.socket) -> None:
    for option in (sockets.SO_RCVBUF, sockets.SO_SNDBUF):
        socket.setsockopt(sockets.SOL_SOCKET, option, KERNEL_BYTES)


async def _connect(reader: StreamReader, writer: StreamWriter) -> tuple[StreamReader, StreamWriter]:
    """Where the connection is to lead, by SOCKS 5 without a password, to an IPv4 address."""
    version, methods = await reader.readexactly(2)
    await reader.readexactly(methods)
    writer.write(b"\5\0")
    version, command, _, kind = await reader.readexactly(4)
    assert (version, command, kind) == (5, 1, 1), "ZeroMQ asks for a connection to an IPv4 address"
    host, port = sockets.inet_ntoa(await reader.readexactly(4)), await reader.readexactly(2)
    socket = sockets.socket()
    try:
        socket.setblocking(False)
        _keep_little(socket)
        await asyncio.get_running_loop().sock_connect(socket, (host, int.from_bytes(port, "big")))
    except BaseException:
        socket.close()
        # libzmq 4.3.5 aborts if a socket is closed after a proxy has refused it something: its
        # ``socks_connecter_t::error`` keeps a handle that is none any more. So what fails is lost at once.
        writer.write(CONNECTED)
        raise
    return await asyncio.open_connection(sock=socket, limit=KERNEL_BYTES)
