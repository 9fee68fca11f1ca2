"""The tests' own relay hands on what it got, however it treats it, and ends as they were."""

from __future__ import annotations

import errno
import secrets
import socket as sockets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.relay import Manner, Relay

LETS_GO = """
import sys, zmq
context = zmq.Context()
with context.socket(zmq.DEALER) as socket:
    socket.linger, socket.reconnect_ivl = 0, 3_600_000
    monitor = socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED)
    socket.socks_proxy = sys.argv[1].encode()
    socket.connect(sys.argv[2])
    monitor.recv_multipart()
    socket.disable_monitor()
    monitor.close()
context.term()
"""
"""Lets go of a connection that has come to nothing."""


def received(end: sockets.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := end.recv(count - len(data))):
        data += more
    return data


@contextmanager
def connected(relay: Relay) -> Iterator[tuple[sockets.socket, sockets.socket]]:
    """Both ends of a connection that the relay has made, as ZeroMQ asks it to."""
    with sockets.create_server(("127.0.0.1", 0)) as server:
        host, _, port = relay.at.partition(":")
        with sockets.create_connection((host, int(port)), timeout=30) as here:
            here.sendall(b"\5\1\0")
            assert received(here, 2) == b"\5\0"
            to = sockets.inet_aton("127.0.0.1") + server.getsockname()[1].to_bytes(2, "big")
            here.sendall(b"\5\1\0\1" + to)
            assert received(here, 10)[:2] == b"\5\0"
            there, _ = server.accept()
            with there:
                there.settimeout(30)
                yield here, there


@pytest.mark.parametrize(
    "manner",
    [
        Manner(),
        Manner(pieces=(1,)),
        Manner(pieces=(1, 1 << 10, 1 << 16), delay_s=0.001),
        Manner(pause_every=1000, pause_s=0.01, until=5000),
    ],
)
def test_what_is_handed_on(manner: Manner) -> None:
    data = secrets.token_bytes(6000)
    with Relay(manner) as relay, connected(relay) as ends:
        for source, sink in (ends, ends[::-1]):
            source.sendall(data)
            assert received(sink, len(data)) == data
        ends[0].close()
        assert ends[1].recv(1) == b""
        assert (relay.connections, relay.handed_on, relay.resets) == (1, 2 * len(data), 0)


def is_reset(end: sockets.socket) -> bool:
    with pytest.raises(OSError) as found:
        while end.recv(1 << 16):
            pass
    return found.value.errno == errno.ECONNRESET


def test_reset() -> None:
    with Relay() as relay, connected(relay) as one, connected(relay) as other:
        assert relay.reset() == 2
        assert all(is_reset(end) for end in (*one, *other))


def test_reset_by_itself() -> None:
    """After so many bytes, on the connection whose manner that is alone."""
    with Relay(lambda number: Manner(reset=None if number else 1000)) as relay:
        with connected(relay) as first, connected(relay) as second:
            for here, _ in (first, second):
                here.sendall(bytes(2000))
            assert is_reset(first[0]) and is_reset(first[1])
            assert received(second[1], 2000) == bytes(2000)
        assert relay.resets == 1


def test_hold() -> None:
    """Nothing is taken: what does not fit into the kernel's buffers stays with the sender."""
    with Relay() as relay, connected(relay) as (here, there):
        relay.hold()
        here.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while sent < 1 << 26:
                sent += here.send(bytes(1 << 16))
        relay.go_on()
        left = sent
        while left:
            left -= len(there.recv(1 << 16))


def test_who_lets_go_of_one_that_leads_nowhere_lives() -> None:
    with sockets.socket() as nobody, Relay() as relay:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        there = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        subprocess.run([sys.executable, "-c", LETS_GO, relay.at, there], check=True, timeout=60)
        assert relay.connections == 1
