"""Records of slices to come, made by processes beside the worker: for transforms that take long.

Each process (``elasticflow.worker.reading``) loads the program's sources afresh, so it inherits no lock or
thread of the worker's, and takes orders from one queue. It gives plain arrays back, in memory that both
share. All of it is an advance only: what is not there when it is wanted, because a process has died, hangs,
or the program raised, is made by the worker itself, which finds out whose fault that is.

What is said, each as one packet:

    worker -> any of them   ReadOrder: at one socket that all read from, the worker too, if it has to wait
    each -> worker          ReadBegun, ReadDone: at a socket of its own, with a descriptor of the memory;
                            DataChanged, instead of all else, if it finds other data than the worker did
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.errors import BrokenError, UnreadableError
from elasticflow.process.decoding import from_msgpack
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array
from elasticflow.storage.file_ids import STAY, FileId
from elasticflow.worker.trial import END_S, SLOWER, how_it_ended

PROCESS = "elasticflow.worker.reading"
ROWS_PER_PACKET = 1 << 14
"""Slices of more records are not ordered: an order has to fit into one packet."""
PACKET = 1 << 18
"""A packet that does not fit is cut off: 8 bytes a row, and as much again for all else."""
AHEAD_BYTES = 256 << 20
"""So much may be ordered and not used yet, by the size of what came last; and always one slice a process."""
ORDERS_EACH = 4
"""So many slices wait for each process at most, however small they are."""
MOST_DEATHS = 3
"""Once so many have died, or hung, no more are started."""

RowNumbers: TypeAlias = "npt.NDArray[np.int64]"
Columns: TypeAlias = dict[str, Array]


class ReadTask(msgspec.Struct, frozen=True):
    """What a process is told as it begins. files: those that the worker's records come from. records: a hash
    of those that it has in memory."""

    settings: MemberSettings
    files: tuple[FileId, ...]
    records: str


class ReadOrder(msgspec.Struct, frozen=True):
    """Make these records, as one slice. rows: int64. seed: see ``Source.drawn``."""

    number: int
    seed: int
    rows: bytes


class ReadBegun(msgspec.Struct, frozen=True, tag=True):
    """It has begun with an order."""

    number: int


class PlainArray(msgspec.Struct, frozen=True):
    """Where an array lies in the shared memory, and what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


class ReadDone(msgspec.Struct, frozen=True, tag=True):
    """An order is done. arrays: None if the program raised."""

    number: int
    arrays: tuple[PlainArray, ...] | None


class DataChanged(msgspec.Struct, frozen=True, tag=True):
    """It finds other data than the worker, and makes no records. change: which, for people."""

    change: str


FromReader: TypeAlias = ReadBegun | ReadDone | DataChanged


class SliceAhead(NamedTuple):
    """A slice, for whoever asks for it later."""

    tick: int
    slice: int


class _ReadProcess:
    """One of them. since_s: since when it has an order, or loads. order: which; None: none."""

    def __init__(self, task: ReadTask, queue: sockets.socket) -> None:
        self.socket, theirs = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        told = msgspec.json.encode(task)
        task_fd = os.memfd_create("elasticflow-task")
        os.write(task_fd, told)
        with theirs:
            descriptors = queue.fileno(), theirs.fileno(), task_fd
            self._popen = subprocess.Popen(
                [sys.executable, "-m", PROCESS, *map(str, (os.getpid(), *descriptors))],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )
        os.close(task_fd)
        self.socket.setblocking(False)
        self.since_s = time.monotonic()
        self.order: int | None = None
        self.checked = False

    def end(self, *, at_once: bool = True) -> str:
        """How it ended."""
        self.socket.close()
        if at_once:
            self._popen.kill()
        try:
            return how_it_ended(self._popen.wait(END_S))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return how_it_ended(self._popen.wait())


class Readers:
    """All of a worker's.

    make: what the worker does itself, for the records of a slice and a seed: columns by name. What each
    process makes first is compared with that.
    """

    def __init__(self, task: ReadTask, make: Callable[[RowNumbers, int], Columns]) -> None:
        self._task, self.make = task, make
        self._queue, self._taken_from = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        self._queue.setblocking(False)
        count = task.settings.read_processes
        self._processes = [_ReadProcess(task, self._taken_from) for _ in range(count)]
        self._deaths = 0
        self._numbers: dict[SliceAhead, int] = {}
        self._orders: dict[int, ReadOrder] = {}
        self._made: dict[int, Columns] = {}
        self._next, self._slice_bytes, self._longest_s = 0, 1, 0.0

    def close(self) -> None:
        """Ends all."""
        for each in self._processes:
            each.end()
        self._processes = []
        for each_end in (self._queue, self._taken_from):
            each_end.close()

    def forget(self, before_tick: int | None = None) -> None:
        """What was ordered for ticks before this one is not wanted any more; None: nothing is."""
        for wanted in [each for each in self._numbers if before_tick is None or each.tick < before_tick]:
            number = self._numbers.pop(wanted)
            self._orders.pop(number, None)
            self._made.pop(number, None)

    def has_room(self) -> bool:
        """Whether more should be ordered."""
        self._hear()
        fits = max(len(self._processes), AHEAD_BYTES // self._slice_bytes)
        return len(self._numbers) < min(fits, ORDERS_EACH * len(self._processes))

    @property
    def active(self) -> bool:
        """Whether there is any process."""
        return bool(self._processes)

    def is_made(self, wanted: SliceAhead) -> bool:
        """Whether a slice that was ordered is there."""
        return self._numbers.get(wanted, -1) in self._made

    def order(self, wanted: SliceAhead, rows: RowNumbers, seed: int) -> None:
        """Has a slice made, unless that is under way."""
        if wanted in self._numbers or not self._processes or not 0 < len(rows) <= ROWS_PER_PACKET:
            return
        order = ReadOrder(self._next, seed, rows.astype(np.int64).tobytes())
        with contextlib.suppress(BlockingIOError):  # so many wait there already
            self._queue.send(msgspec.msgpack.encode(order))
            self._next += 1
            self._orders[order.number] = order
            self._numbers[wanted] = order.number

    def take(self, wanted: SliceAhead) -> Columns | None:
        """A slice that was ordered, once it is there; None: the worker has to make it. Never waits for a
        process that has died, or that takes too long."""
        number = self._numbers.pop(wanted, None)
        if number is None:
            return None
        until_s = time.monotonic() + 2 * self._limit_s()
        self._hear()
        while number in self._orders and number not in self._made and time.monotonic() < until_s:
            if not self._help(number):
                self._wait()
            self._hear()
        self._orders.pop(number, None)
        return self._made.pop(number, None)

    def _help(self, wanted: int) -> bool:
        """Makes what nobody has begun with yet. False if there is no such."""
        try:
            # This end is the processes' as well, which wait at it: it must not be set to never block.
            order = from_msgpack(self._taken_from.recv(PACKET, sockets.MSG_DONTWAIT), ReadOrder)
        except BlockingIOError:
            return False
        if order.number == wanted:
            del self._orders[wanted]  # whoever wants it does it
        elif order.number in self._orders:
            try:
                self._made[order.number] = self.make(np.frombuffer(order.rows, np.int64), order.seed)
            except (Exception, SystemExit):  # noqa: BLE001  (it raises again in its own turn)
                del self._orders[order.number]
        return True

    def _wait(self) -> None:
        """Until one says something, or has taken too long."""
        ends_s = min(
            (each.since_s for each in self._processes if each.order is not None), default=time.monotonic()
        )
        ends_s = max(ends_s, time.monotonic() - self._limit_s()) + self._limit_s()
        poller = select.poll()
        for each in self._processes:
            poller.register(each.socket, select.POLLIN)
        poller.poll(max(0.0, 1000 * (ends_s - time.monotonic())))
        for each in list(self._processes):
            if each.order is not None and time.monotonic() > each.since_s + self._limit_s():
                each.end()
                self._lose(each, f"has not come back for {self._limit_s():g} s, and was ended")

    def _limit_s(self) -> float:
        return max(self._task.settings.lost_s, SLOWER * self._longest_s)

    def _hear(self) -> None:
        """Whatever has been said until now."""
        for each in list(self._processes):
            try:
                while True:
                    packet, descriptors, _, _ = sockets.recv_fds(
                        each.socket, PACKET, 1, sockets.MSG_CMSG_CLOEXEC
                    )
                    if not packet:
                        self._lose(each, each.end(at_once=False))
                        break
                    self._take_in(each, packet, descriptors)
            except BlockingIOError:
                continue
            except ConnectionError:
                self._lose(each, each.end(at_once=False))

    def _take_in(self, process: _ReadProcess, packet: bytes, descriptors: list[int]) -> None:
        message: FromReader = from_msgpack(packet, FromReader)
        if isinstance(message, DataChanged):
            raise UnreadableError(f"{message.change}. {STAY}")
        if isinstance(message, ReadBegun):
            process.order, process.since_s = message.number, time.monotonic()
            return
        self._longest_s = max(self._longest_s, time.monotonic() - process.since_s)
        process.order = None
        columns = _arrays_in(descriptors[0], message.arrays or ()) if descriptors else None
        order = self._orders.get(message.number)
        if order is None:
            return
        if columns is None:
            del self._orders[message.number]
            return
        self._slice_bytes = max(1, sum(array.nbytes for array in columns.values()))
        if not process.checked:
            self._check(order, columns)
            process.checked = True
        self._made[message.number] = columns

    def _check(self, order: ReadOrder, found: Columns) -> None:
        """Raises BrokenError if a process makes other records than this one does."""
        rows = np.frombuffer(order.rows, np.int64)
        mine = self.make(rows, order.seed)
        for name, array in mine.items():
            other = found.get(name)
            if other is None or other.dtype != array.dtype or other.tobytes() != array.tobytes():
                raise BrokenError(
                    f"column {name!r} of the records {', '.join(map(str, rows[:3]))}, ... is another one in "
                    "a process that reads ahead: the same answer is not possible. Is what makes it random "
                    "beyond the seed, as with a generator of its own, or does it remember earlier calls?"
                )

    def _lose(self, process: _ReadProcess, how: str) -> None:
        self._processes.remove(process)
        # It may have died before it said which order it had; the one that is waited for is in no list.
        self.forget()
        self._orders.clear()
        self._made.clear()
        self._deaths += 1
        what = "the worker makes its records itself"
        if self._deaths <= MOST_DEATHS:
            with contextlib.suppress(OSError):  # too many processes: it goes without
                self._processes.append(_ReadProcess(self._task, self._taken_from))
                what += ", and another one begins"
        print(f"warning: a process that reads ahead {how}: {what}", flush=True)


def _arrays_in(descriptor: int, told: tuple[PlainArray, ...]) -> Columns:
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size)
    os.close(descriptor)
    found: Columns = {}
    for each in told:
        dtype = np.dtype(each.dtype)
        count = int(np.prod(each.shape, dtype=np.int64))
        flat = (
            np.frombuffer(memory, dtype, count, each.start)
            if count and dtype.itemsize
            else np.empty(0, dtype)
        )
        found[each.name] = flat.reshape(each.shape)
    return found
