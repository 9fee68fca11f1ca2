"""ZeroMQ's sockets as both planes use them, and whether anything has come."""

from __future__ import annotations

import math
import secrets
from typing import TypeAlias

import zmq

# pyzmq's classes are generic over what recv returns; ours return bytes or frames, as asked.
Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"

HANG_UP_S = 1.0
"""So long is waited at most until a connection that is hung up has closed, before its socket is.

A socket that closes at once while a part of a message has gone out, and whose other end goes before ZeroMQ
has let go of it, aborts the process: an assertion in ``session_base_t::clean_pipes`` of 4.3.5, libzmq's issue
3442. A connection that has closed by then is none that could.
"""

# pyzmq's enumerations take a microsecond each time they are put together, or asked.
NOBLOCK, SNDMORE, POLLIN, EVENTS = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.POLLIN), int(zmq.EVENTS)


def poll_ms(seconds: float | None) -> int | None:
    """A time to wait, as ZeroMQ's pollers take it; None: for ever. Never too short, which would spin.

    What is due since ever, or never, is infinitely far away.
    """
    return None if seconds is None or seconds == math.inf else math.ceil(max(0.0, seconds) * 1000)


def monitor_of(socket: Socket, events: int) -> Socket:
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


def readable(socket: Socket) -> bool:
    events = socket.getsockopt(EVENTS)
    assert isinstance(events, int)
    return bool(events & POLLIN)
