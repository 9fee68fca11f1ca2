"""The child processes in which a worker has slices tried that may end them: see ``elasticflow.worker.trial``.

``python -m elasticflow.worker.tried PARENT SOCKET STATE PROGRAM``: the number of the worker's process,
descriptors, and the program's path. It imports the program's framework, which takes seconds, then it forks a
child for each pipe that comes through the socket, and tells there how that has ended. Where an import has
started threads nothing can be forked: then it is the child itself. A porter that has the framework imported
forks such a process (``nurse``).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import mmap
import os
import socket as sockets
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

from elasticflow.errors import ElasticFlowError
from elasticflow.frameworks import warm_up
from elasticflow.process.decoding import from_msgpack
from elasticflow.process.forker import ends_here
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stacks import num_threads
from elasticflow.process.stamps import stamp_output
from elasticflow.program.loading import imports
from elasticflow.step.layout import Vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.schedule import Kind
from elasticflow.worker.batches import slice_seed
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.trial import Begin, Begun, FromChild, RowsAre, RowsOf, ToChild, Tried, Try
from elasticflow.worker.whose_fault import die_of, is_of_kernel


class _Child:
    """Computes what it is told to, as the worker would."""

    def __init__(self, pipe: Connection[bytes, bytes], state_fd: int) -> None:
        self._pipe, self._state_fd = pipe, state_fd
        self._asking = threading.Lock()

    def run(self) -> None:
        begin = self._hear()
        assert isinstance(begin, Begin)
        os.environ.update(begin.visible)  # nothing has looked for GPUs yet
        loaded = Loaded(begin.settings)
        replica = loaded.replica
        self._seed, self._schedule = begin.seed, begin.schedule or loaded.schedule
        self._replica, self._batches = replica, loaded.batches(self._schedule)
        since_s = time.monotonic()
        if begin.with_state:
            loaded.rehearse()
            _fill(replica.state, self._state_fd)
            replica.refresh()
            replica.lookups.read_rows = replica.lookups.read_next = self._read
        self._batches.exclude(begin.excluded)
        self._out = Vector(replica.layout)
        self._say(Begun(time.monotonic() - since_s, *self._first_slice()))
        while isinstance(asked := self._hear(), Try):
            try:
                self._compute(asked)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's program raises: it lives)
                if is_of_kernel(error):
                    die_of(error)
                self._say(Tried(raised=True))
            else:
                self._say(Tried(raised=False))

    def _first_slice(self) -> tuple[int, tuple[int, ...]]:
        """The first that holds records, and which."""
        first = self._schedule.at(0)
        for number in range(self._schedule.num_slices):
            if len(rows := self._batches.rows(first, number)):
                return number, tuple(map(int, rows))
        return 0, ()

    def _compute(self, asked: Try) -> None:
        work = self._schedule.at(asked.tick)
        seed = slice_seed(self._seed, work.draws, asked.slice)
        if work.kind is Kind.KEEP:
            self._replica.keep(work, self._out)
            return
        if asked.rows is not None:
            batches = [self._batches.of_rows(work.kind, np.array(asked.rows))]
        elif work.kind is Kind.EVALUATE:
            batches = [batch for batch, *_ in self._batches.test(work, asked.slice)]
        else:
            batch, _ = self._batches.train(work, asked.slice)
            batches = [] if batch is None else [batch]
        for batch in batches:
            if work.kind is Kind.EVALUATE:
                self._replica.evaluate(batch, seed)
            else:
                self._replica.begin_slice(work, asked.slice)
                self._replica.compute(batch, seed, 1.0, self._out)

    def _read(self, table: int, keys: Keys) -> Callable[[], Values]:
        """Rows that only the worker can get."""
        dim = self._replica.tables[table].dim

        def wait() -> Values:
            with self._asking:
                self._say(RowsOf(table, np.ascontiguousarray(keys).tobytes()))
                answer = self._hear()
            assert isinstance(answer, RowsAre)
            return np.frombuffer(answer.values, np.float32).reshape(len(keys), dim)

        return wait

    def _say(self, message: FromChild) -> None:
        self._pipe.send_bytes(msgspec.msgpack.encode(message))

    def _hear(self) -> ToChild:
        """Raises EOFError once the worker has no more to be tried."""
        message: ToChild = from_msgpack(self._pipe.recv_bytes(), ToChild)
        return message


def _fill(state: Vector, fd: int) -> None:
    """Puts the worker's state into that of this process."""
    size = sum(group.nbytes for group in state.groups)
    if not size:
        return
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as memory:
        start = 0
        for group in state.groups:
            np.copyto(group, np.frombuffer(memory[start : start + group.nbytes], group.dtype))
            start += group.nbytes


def _be_child(pipe_fd: int, state_fd: int) -> NoReturn:
    with ends_here(), contextlib.suppress(EOFError):
        _Child(Connection(pipe_fd), state_fd).run()
    raise AssertionError("not reached")


def _fork(pipe_fd: int, state_fd: int) -> int:
    """Forks a child, and returns how it ended. Raises OSError if it cannot."""
    nursery = os.getpid()
    pid = os.fork()
    if not pid:
        die_with_parent(nursery)
        _be_child(pipe_fd, state_fd)
    # So that the worker sees the pipe end with the child.
    os.close(pipe_fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """See the module's docstring."""
    parent, socket_fd, state_fd = map(int, sys.argv[1:4])
    die_with_parent(parent)  # what hangs here must not live on alone
    faulthandler.enable()
    stamp_output()
    with contextlib.suppress(ElasticFlowError):  # what is wrong with the program its child says
        warm_up(imports(sys.argv[4]))
    nurse(socket_fd, state_fd)


def nurse(socket_fd: int, state_fd: int) -> NoReturn:
    """Forks children until the worker closes its end of the socket. In a process that is for nothing else."""
    with contextlib.suppress(OSError):  # where memory runs out, this one is to end
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    gc.freeze()  # children need not look at what was imported, nor copy its pages for that
    worker = sockets.socket(fileno=socket_fd)
    worker.set_inheritable(False)
    while pipes := sockets.recv_fds(worker, 1, 1)[1]:
        os.set_inheritable(pipes[0], False)
        if num_threads() > 1:
            _be_child(pipes[0], state_fd)
        try:
            code = _fork(pipes[0], state_fd)
        except OSError:  # there are too many processes
            _be_child(pipes[0], state_fd)
        worker.send(str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
