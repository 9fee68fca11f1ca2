"""Slices that workers may have died of are tried in a child process, and their records one by one.

The child (``elasticflow.worker.tried``) loads the program, gets the state of the worker, and computes what it
is told to. If it dies of that, or does not come back, another child tries the next. So a segmentation fault
in a library costs a child, and the worker can say which records did it. A record counts as deadly only if it
is so twice: somebody else may have ended the child. Children are forked from a nursery, a process that has
imported the framework, if they can be. Where the worker has a porter that has it imported too, the nursery is
forked there, and is there at once; else it is a process that begins anew, which takes seconds.

What is said between the two, each as one packet of a pipe that is theirs alone:

    worker -> child   Begin, Try, RowsAre
    child -> worker   Begun, Tried, RowsOf
"""

from __future__ import annotations

import os
import select
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from elasticflow.errors import ElasticFlowError
from elasticflow.frameworks import Interrupted
from elasticflow.process import ending
from elasticflow.process.decoding import from_msgpack
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Excluded

CHILD = "elasticflow.worker.tried"
LOAD_S = 900.0
"""So long the child may take to load the program."""
END_S = 10.0
"""So long it may take to end once it has closed the pipe."""
SLOWER = 20.0
"""A slice, or a record, may take ``lost_s``, or so many times longer than the first slice of all took."""


class TrialError(ElasticFlowError, RuntimeError):
    """Slices cannot be tried in another process."""


# --- what is found out ---------------------------------------------------------------------------


class TrialOutcome(NamedTuple):
    """Of one try: how the child ended, if it did. raised: it lives, and the program raised."""

    died: str = ""
    raised: bool = False


class Deadly(NamedTuple):
    """A slice on which processes die. rows: those that do it alone, perhaps none."""

    rows: tuple[int, ...]
    text: str


_IT = "a process that computed it "


def try_slice(
    outcome: Callable[[tuple[int, ...] | None], TrialOutcome], rows: Sequence[int]
) -> Deadly | None:
    """Which records of a slice are deadly; None if a process survives it.

    outcome: of trying these records, or with None the slice as it is.
    """
    first = outcome(None)
    if not first.died:
        return None
    found = {row: died for row in rows if (died := _dies_of(outcome, row))}
    if found:
        return Deadly(tuple(found), _IT + next(iter(found.values())))
    again = outcome(None)  # the first time it may have been ended from outside
    return Deadly((), _IT + again.died) if again.died else None


def _dies_of(outcome: Callable[[tuple[int, ...] | None], TrialOutcome], row: int) -> str:
    """How a process dies of a record, twice; else nothing. BatchNorm, say, raises on one, and wants two."""
    alone = outcome((row,))
    if not (alone.died or alone.raised):
        return ""
    pair = outcome((row, row))
    if not pair.died or alone.died:
        return pair.died
    return outcome((row, row)).died


# --- what is said --------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the program. with_state: the state's groups lie in the file that is the child's second
    descriptor; else the program's first values are the state. visible: the worker's, see
    ``elasticflow.process.gpus.visible``: a porter was there before the worker had leased its GPU."""

    settings: MemberSettings
    schedule: Schedule | None
    """None: that of the first epoch, which the program tells."""
    seed: int
    excluded: tuple[Excluded, ...] = ()
    with_state: bool = True
    visible: Mapping[str, str] = {}


class Try(msgspec.Struct, frozen=True, tag=True):
    """Compute a slice; or these rows alone, as it would be done in that slice."""

    tick: int
    slice: int
    rows: tuple[int, ...] | None


class RowsAre(msgspec.Struct, frozen=True, tag=True):
    """The answer to RowsOf: float32."""

    values: bytes


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The program is loaded. first_s: seconds that the first slice took, its number, and its rows."""

    first_s: float
    slice: int
    rows: tuple[int, ...]


class Tried(msgspec.Struct, frozen=True, tag=True):
    """It was computed, and the child lives. raised: the program raised."""

    raised: bool


class RowsOf(msgspec.Struct, frozen=True, tag=True):
    """The rows of a table with these keys, uint64, please."""

    table: int
    keys: bytes


ToChild: TypeAlias = Begin | Try | RowsAre
FromChild: TypeAlias = Begun | Tried | RowsOf


# --- the worker's side ---------------------------------------------------------------------------


class Way(NamedTuple):
    """What the worker has, and the child has not.

    read: ``Strategy.read``. urgent: asked whenever ``wake_fd`` is readable: whether to give the trial up.
    """

    read: Callable[[int, Keys, Callable[[], bool]], Callable[[], Values]]
    urgent: Callable[[], bool]
    wake_fd: int


class NurseryProcess(Protocol):
    """A nursery, as whoever began it sees it."""

    def kill(self) -> None: ...

    def wait(self) -> int:
        """Waits for its end. The exit status; negative: of the signal."""


Nurse: TypeAlias = Callable[[int, int], NurseryProcess]
"""Begins a nursery: of its socket and the file of the state, see ``elasticflow.worker.tried``."""


class Trial:
    """Children, one after the other, that are there within ``with``.

    state: None for the program's first values; then there is no ``way``. environment: None: this process's.
    nurse: None: a nursery begins as a process of its own.
    """

    def __init__(
        self,
        begin: Begin,
        state: Vector | None,
        way: Way | None,
        environment: Mapping[str, str] | None = None,
        moves: Callable[[], None] = lambda: None,
        nurse: Nurse | None = None,
    ) -> None:
        self._moves, self._nurse = moves, nurse or self._begin_nursery
        self._begin, self._way = msgspec.structs.replace(begin, with_state=state is not None), way
        self._environment = environment
        self._state_fd = os.memfd_create("elasticflow-trial", os.MFD_CLOEXEC)
        for group in state.groups if state else ():
            _write(self._state_fd, group.tobytes())
        self._nursery: NurseryProcess | None = None
        self._socket: sockets.socket
        self._pipe: Connection[bytes, bytes]
        self._limit_s = LOAD_S
        self._begun: Begun | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end(at_once=True)
        os.close(self._state_fd)

    def outcome(self, tick: int, number: int, rows: tuple[int, ...] | None) -> TrialOutcome:
        """Has a child compute a slice, or rows as in that slice; see ``Try``.

        Raises TrialError if no child gets so far, and Interrupted.
        """
        self.begin()
        self._send(Try(tick, number, rows))
        with self._told():
            answer = self._answer()
        return answer if isinstance(answer, TrialOutcome) else TrialOutcome(raised=answer.raised)  # type: ignore[union-attr]

    def begin(self) -> Begun:
        """Has a child load the program, unless there is one. Raises TrialError if none gets so far."""
        if self._begun is not None:
            return self._begun
        for _ in range(2):  # the first may be ended from outside
            self._start()
            self._send(self._begin)
            with self._told():
                answer = self._answer()
            if isinstance(answer, Begun):
                self._limit_s = max(self._begin.settings.lost_s, SLOWER * answer.first_s)
                self._begun = answer
                return answer
        raise TrialError(
            "a slice that workers may have died of is to be tried in another process, and that "
            f"{answer.died} before it had loaded the program; this process's log has its words."  # type: ignore[union-attr]
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Something of which others should know that it goes on: it may take its time."""
        self._moves()
        try:
            yield
        finally:
            self._moves()

    def _start(self) -> None:
        if self._nursery is None:
            self._launch()
        self._pipe, theirs = Pipe()
        self._limit_s = LOAD_S
        with theirs, suppress(OSError):  # the nursery has ended, which waiting for an answer will show
            sockets.send_fds(self._socket, [b"."], [theirs.fileno()])

    def _launch(self) -> None:
        self._socket, theirs = sockets.socketpair()
        self._socket.settimeout(END_S)
        with theirs:
            self._nursery = self._nurse(theirs.fileno(), self._state_fd)

    def _begin_nursery(self, socket_fd: int, state_fd: int) -> NurseryProcess:
        arguments = os.getpid(), socket_fd, state_fd, self._begin.settings.program
        return subprocess.Popen(
            [sys.executable, "-m", CHILD, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            pass_fds=(socket_fd, state_fd),
            env=self._environment,
        )

    def _send(self, message: ToChild) -> None:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            pass  # it has ended, which waiting for its answer will show

    def _answer(self) -> Begun | Tried | TrialOutcome:
        """The child's next word but for questions, which are answered; or how it ended."""
        until_s = time.monotonic() + self._limit_s
        while True:
            try:
                heard = self._wait(until_s)
                if heard is None:
                    self._end(at_once=True)
                    return TrialOutcome(died=f"did not come back within {self._limit_s:g} s")
                message: FromChild = from_msgpack(heard, FromChild)
            except (EOFError, OSError):
                return TrialOutcome(died=self._end())
            if not isinstance(message, RowsOf):
                return message
            self._read(message)

    def _wait(self, until_s: float) -> bytes | None:
        """What the child says. None: nothing in time. Raises EOFError if it has ended, and Interrupted."""
        poller = select.poll()
        poller.register(self._pipe.fileno(), select.POLLIN)
        if self._way:
            poller.register(self._way.wake_fd, select.POLLIN)
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            ready = {fd for fd, _ in poller.poll(left_s * 1000)}
            if self._pipe.fileno() in ready:
                return self._pipe.recv_bytes()
            if self._way and self._way.wake_fd in ready and self._way.urgent():
                raise Interrupted("the master has something else to be done")
            if not ready:
                return None

    def _read(self, asked: RowsOf) -> None:
        assert self._way is not None, "without a state rows are the first values"
        keys = np.frombuffer(asked.keys, np.uint64)
        values = self._way.read(asked.table, keys, self._way.urgent)()
        self._send(RowsAre(np.ascontiguousarray(values, np.float32).tobytes()))

    def _end(self, *, at_once: bool = False) -> str:
        """Ends the child, if it has not ended by itself, and at once with its nursery. How it ended."""
        self._begun = None
        if self._nursery is None:
            return "is not there"
        self._pipe.close()
        try:
            told = b"" if at_once else self._socket.recv(8)
        except OSError:  # it takes too long
            at_once, told = True, b""
        if told:
            return how_it_ended(int(told))
        nursery, self._nursery = self._nursery, None
        self._socket.close()
        if at_once:
            nursery.kill()
        return how_it_ended(nursery.wait())  # it has ended: where it could not fork it was the child


def try_first_slice(settings: MemberSettings, environment: Mapping[str, str]) -> Deadly | None:
    """Which records of the first slice are deadly. environment: of the child. Raises TrialError."""
    begin = Begin(settings=settings, schedule=None, seed=settings.seed)
    with Trial(begin, None, None, environment) as trial:
        first = trial.begin()
        return try_slice(lambda rows: trial.outcome(0, first.slice, rows), first.rows)


def how_it_ended(status: int) -> str:
    """Of a process that should not have: the exit status in words."""
    return f"ended by itself, with exit code {status}" if status >= 0 else ending.how_it_ended(status)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
