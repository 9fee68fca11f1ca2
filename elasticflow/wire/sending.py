"""A message with arrays is sent: in C, ``sending.c``, where a C compiler was when this was installed.

Without it pyzmq does the same, which takes a thread of its own, and some 100 us more for each array.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import zmq

from elasticflow.process.addresses import address_of
from elasticflow.process.compiled import library
from elasticflow.step.layout import Array
from elasticflow.wire.sockets import NOBLOCK, SNDMORE, Socket

COPY_BELOW_BYTES = 64 << 10
"""Arrays below this are copied into the socket; others are sent in place. pyzmq's own threshold."""
SWEEP = 4
"""For each message that lends arrays, so many that may have left are looked at."""


class Tracker(Protocol):
    """Whether memory that was sent without a copy, or is read where it lies, is free again."""

    @property
    def done(self) -> bool: ...


class Loan:
    """Arrays that a socket reads where they lie: in use until it has let go of each of them."""

    __slots__ = ("_arrays", "_left")

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays, self._left = arrays, ctypes.c_long(0)

    @property
    def done(self) -> bool:
        return not self._left.value


_loans: deque[Loan] = deque()
"""Those whose memory must stay, whoever else forgets it: its end is written into it."""


def _functions() -> ctypes.PyDLL | None:
    """Of ``sending.c``, with the libzmq that pyzmq has loaded. They wait for nothing, and keep the GIL."""
    found = library(Path(__file__).parent)
    if found is None:
        return None
    try:
        from zmq.backend.cython import _zmq

        theirs = ctypes.CDLL(_zmq.__file__)
        names = ("init_size", "init_data", "data", "send", "close")
        addresses = [ctypes.cast(theirs[f"zmq_msg_{name}"], ctypes.c_void_p) for name in names]
    except (ImportError, OSError, AttributeError):
        return None  # another backend of pyzmq's, or one that hides its libzmq
    functions = ctypes.PyDLL(found._name)
    functions.use_zmq(*addresses)
    text, size = ctypes.c_char_p, ctypes.c_size_t
    functions.send_message.argtypes = (
        *(ctypes.c_void_p, text, size, text, size),
        *(text, size, size, ctypes.POINTER(ctypes.c_long)),
    )
    return functions


_in_c = _functions()
available = _in_c is not None
"""Whether messages are sent in C."""


def send_frames(socket: Socket, head: Sequence[bytes], arrays: Sequence[Array]) -> Tracker | None:
    """Sends a route, if any, a header and arrays, and waits for nothing.

    Returns what is done once the memory of all arrays is free again; None: it is already. Raises zmq.Again if
    that would have to wait, and zmq.ZMQError if it fails; nothing has been sent then.
    """
    if not arrays:
        socket.send_multipart(head, NOBLOCK)
        return None
    if _in_c is None or type(socket) is not zmq.Socket:  # as in a simulation
        return _send_with_pyzmq(socket, head, arrays)
    whole = [array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in arrays]
    places = struct.pack(
        f"{2 * len(whole)}N", *(n for each in whole for n in (address_of(each), each.nbytes))
    )
    *routes, header = head
    route = routes[0] if routes else None
    loan = Loan(whole)
    failed = _in_c.send_message(
        socket.underlying, route, len(route or b""), header, len(header),
        places, len(whole), COPY_BELOW_BYTES, loan._left,
    )  # fmt: skip
    is_over = loan.done
    if not is_over:
        _keep(loan)
    if failed:
        raise zmq.Again(failed) if failed == zmq.EAGAIN else zmq.ZMQError(failed)
    return None if is_over else loan


def _keep(loan: Loan) -> None:
    """Until it has ended, and some others to be sent after that. By any thread."""
    _loans.append(loan)
    with contextlib.suppress(IndexError):  # another thread was faster
        for _ in range(min(SWEEP, len(_loans) - 1)):
            oldest = _loans.popleft()
            if not oldest.done:
                _loans.append(oldest)


def _send_with_pyzmq(socket: Socket, head: Sequence[bytes], arrays: Sequence[Array]) -> Tracker | None:
    """Frame by frame: ``send_multipart`` returns the tracker of the last one alone, and that may be free long
    before those before it."""
    socket.send_multipart(head, NOBLOCK | SNDMORE)
    trackers: list[zmq.MessageTracker] = []
    for left, array in zip(reversed(range(len(arrays))), arrays, strict=True):
        flags = NOBLOCK | (SNDMORE if left else 0)
        frame = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        if frame.nbytes < COPY_BELOW_BYTES:
            socket.send(frame, flags)
        elif tracker := socket.send(frame, flags, copy=False, track=True):
            trackers.append(tracker)
    return zmq.MessageTracker(*trackers) if len(trackers) > 1 else trackers[0] if trackers else None
