"""Memory that is sent in place belongs to the socket until the tracker says otherwise."""

from __future__ import annotations

import ctypes
import errno
import gc
import shutil
import socket as sockets
import time
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
import zmq

from elasticflow.step.layout import Array
from elasticflow.wire import sending
from elasticflow.wire.sending import COPY_BELOW_BYTES, Tracker, send_frames
from elasticflow.wire.sockets import Context, Socket

LARGE, SMALL, EMPTY = COPY_BELOW_BYTES, COPY_BELOW_BYTES - 8, 0
ORDERS = sorted(
    {order for length in (1, 2) for order in product((LARGE, SMALL, EMPTY), repeat=length)}
    | set(permutations((LARGE, LARGE, SMALL, EMPTY)))
)
DONE_S = 10


def arrays_of(order: tuple[int, ...]) -> list[Array]:
    return [np.full(size // 8, number + 1, np.float64) for number, size in enumerate(order)]


@pytest.fixture(autouse=True, params=["in C", "with pyzmq"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "with pyzmq":
        monkeypatch.setattr(sending, "_in_c", None)
    elif not sending.available:
        pytest.skip("there was no C compiler when this was installed")


def wait_for(tracker: Tracker | None, most_s: float = DONE_S) -> None:
    """A thread of ZeroMQ's ends the loan, which tells nobody."""
    until_s = time.monotonic() + most_s
    while tracker is not None and not tracker.done:
        assert time.monotonic() < until_s, "still lent"
        time.sleep(0.001)


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def unread(context: Context) -> Iterator[Socket]:
    """A socket whose other end takes nothing: it does not even say hello."""
    with sockets.create_server(("127.0.0.1", 0)) as deaf:
        socket: Socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{deaf.getsockname()[1]}")
        yield socket
        socket.close()


@pytest.mark.parametrize("order", ORDERS)
def test_memory_is_not_free_while_nobody_reads(unread: Socket, order: tuple[int, ...]) -> None:
    tracker = send_frames(unread, [b"head"], arrays_of(order))
    if LARGE not in order:
        assert tracker is None  # all was copied
        return
    assert tracker is not None and not tracker.done
    with pytest.raises(AssertionError):
        wait_for(tracker, 0.05)
    unread.close(linger=0)  # whoever gives up what is queued gives the memory back
    wait_for(tracker)


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_sent_is_what_comes_though_memory_is_used_again_at_once(
    context: Context, order: tuple[int, ...]
) -> None:
    with context.socket(zmq.DEALER) as receiver, context.socket(zmq.DEALER) as sender:
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        sender.connect(f"tcp://127.0.0.1:{port}")
        arrays = arrays_of(order)
        for turn in range(20):
            for array in arrays:
                array[:] = turn
            tracker = send_frames(sender, [b"%d" % turn], arrays)
            wait_for(tracker)
            for array in arrays:
                array[:] = np.nan
        for turn in range(20):
            head, *frames = receiver.recv_multipart()
            assert head == b"%d" % turn
            assert [len(frame) for frame in frames] == list(order)
            assert all((np.frombuffer(frame) == turn).all() for frame in frames)


def test_memory_that_everybody_forgets_stays_as_long_as_it_is_lent(context: Context, unread: Socket) -> None:
    [array] = arrays_of((LARGE,))
    lent = weakref.ref(array)
    send_frames(unread, [b"head"], [array])
    del array
    gc.collect()
    assert lent() is not None
    unread.close(linger=0)
    with context.socket(zmq.DEALER) as receiver, context.socket(zmq.DEALER) as sender:
        sender.connect(f"tcp://127.0.0.1:{receiver.bind_to_random_port('tcp://127.0.0.1')}")
        until_s = time.monotonic() + DONE_S
        while lent() is not None:  # given back with one of the next messages
            assert time.monotonic() < until_s, "kept for ever"
            wait_for(send_frames(sender, [b"head"], arrays_of((LARGE,))))
            receiver.recv_multipart()


def test_a_message_that_cannot_be_sent_is_not_begun(context: Context) -> None:
    with context.socket(zmq.DEALER) as socket, pytest.raises(zmq.Again):  # connected to nobody
        send_frames(socket, [b"head"], arrays_of((LARGE, SMALL)))


class Zmq:
    """Stands in for libzmq behind a copy of the C functions. refused: of each send the error, 0: none."""

    def __init__(self, tmp_path: Path, refused: list[int]) -> None:
        found = Path(sending.__file__).parent
        library = tmp_path / "copy.so"
        shutil.copy(next(found.glob("_native*.so")), library)
        self.sent: list[int] = []
        """By message, where it lay."""
        self._refused = refused
        whole, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        self._room = ctypes.create_string_buffer(1 << 20)
        self._functions = (
            ctypes.CFUNCTYPE(whole, pointer, size)(lambda message, size: 0),
            ctypes.CFUNCTYPE(whole, pointer, pointer, size, pointer, pointer)(lambda *given: 0),
            ctypes.CFUNCTYPE(pointer, pointer)(lambda message: ctypes.addressof(self._room)),
            ctypes.CFUNCTYPE(whole, pointer, pointer, whole, use_errno=True)(self._send),
            ctypes.CFUNCTYPE(whole, pointer)(lambda message: 0),
        )
        self.in_c = ctypes.PyDLL(str(library))
        self.in_c.use_zmq(*(ctypes.cast(each, pointer) for each in self._functions))
        assert sending._in_c is not None
        self.in_c.send_message.argtypes = sending._in_c.send_message.argtypes

    def _send(self, message: int, socket: int, flags: int) -> int:
        self.sent.append(message)
        refused = self._refused.pop(0)
        ctypes.set_errno(refused)
        return -1 if refused else 0


def test_a_signal_does_not_end_the_sending(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sending._in_c is None:
        pytest.skip("pyzmq sees to it")
    zmq_ = Zmq(tmp_path, [errno.EINTR, 0, 0, errno.EINTR, errno.EINTR, 0])
    monkeypatch.setattr(sending, "_in_c", zmq_.in_c)
    with context.socket(zmq.DEALER) as socket:
        assert send_frames(socket, [b"route", b"head"], arrays_of((SMALL,))) is None
    assert len(zmq_.sent) == 6


def test_arrays_of_a_message_that_fails_half_way_stay(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sending._in_c is None:
        pytest.skip("pyzmq sees to it")
    zmq_ = Zmq(tmp_path, [0, 0, errno.EINVAL])
    monkeypatch.setattr(sending, "_in_c", zmq_.in_c)
    monkeypatch.setattr(sending, "_loans", deque())  # this one never ends
    arrays = arrays_of((LARGE, LARGE))
    lent = [weakref.ref(array) for array in arrays]
    with context.socket(zmq.DEALER) as socket, pytest.raises(zmq.ZMQError) as caught:
        send_frames(socket, [b"head"], arrays)
    assert caught.value.errno == errno.EINVAL
    del arrays, caught
    gc.collect()
    assert all(array() is not None for array in lent)
