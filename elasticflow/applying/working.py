"""The processes that compute parts. See ``orders`` for what is said in the pipe that each has.

``python -m elasticflow.applying.working PARENT SOCKET PROGRAM`` imports the program's framework, and forks
them (``process.forker``). PARENT is the number of the command's process, with which all end. Where an import
has started threads nothing can be forked: then it ends, and each process is begun anew, by
``python -m elasticflow.applying.working PARENT PIPE``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import socket as sockets
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn, TypeAlias

import msgspec

from elasticflow.applying.orders import (
    PREDICT,
    LoadOrder,
    Order,
    PartAt,
    PartDone,
    PartOrder,
    ProcessReady,
    SearchOrder,
    SumDone,
    SumOrder,
    Word,
    WorkRefused,
)
from elasticflow.applying.part_work import EvaluateWork, PredictWork
from elasticflow.applying.sources import place_of
from elasticflow.errors import ElasticFlowError, ProgramError
from elasticflow.frameworks import warm_up
from elasticflow.process.fingerprint import fingerprint
from elasticflow.process.forker import READY, Forker, ForkOrder
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stacks import num_threads
from elasticflow.process.stamps import stamp_output
from elasticflow.process.texts import bear_any_text
from elasticflow.program.copy import gather
from elasticflow.program.loading import imports
from elasticflow.storage.file_ids import folded
from elasticflow.worker.whose_fault import OutsideError

Pipe: TypeAlias = "Connection[bytes, bytes]"


class _Working:
    """Until the command closes the pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def run(self) -> None:
        order = self._hear()
        assert isinstance(order, LoadOrder)
        program = _hash_of(order)
        self._work = PredictWork(order) if order.verb == PREDICT else EvaluateWork(order)
        work = self._work
        if _hash_of(order) != program:
            raise ProgramError(f"{order.settings.program}: was changed while it was loaded; try again.")
        self._say(
            ProcessReady(
                num_records=work.source.num_rows,
                num_parts=work.num_parts,
                part_records=work.part_records,
                batch_records=work.batch_records,
                program=program,
                files=folded(work.source.files),
                facts=fingerprint(order.settings.threads, work.facts),
            )
        )
        while True:
            self._obey(self._hear())

    def _obey(self, order: Order) -> None:
        if isinstance(order, PartOrder):
            self._say(PartDone(order.part, self._work.do(order.part, self._at if order.careful else _unsaid)))
        elif isinstance(order, SearchOrder):
            with contextlib.suppress(
                ElasticFlowError
            ):  # it lives: what the program raises the part will tell
                self._work.search(order.first, order.last, self._at)
            self._say(PartDone(order.part))
        elif isinstance(order, SumOrder):
            assert isinstance(self._work, EvaluateWork)
            self._say(SumDone(self._work.summed(order.total)))

    def _at(self, first: int, last: int) -> None:
        self._say(PartAt(first, last, place_of(self._work.source, first) if last > first else ""))

    def _say(self, word: Word) -> None:
        self._pipe.send_bytes(msgspec.msgpack.encode(word))

    def _hear(self) -> Order:
        """Raises EOFError once there is no more to be done."""
        order: Order = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=Order)
        return order


def _hash_of(order: LoadOrder) -> str:
    """Of the program as it is now; of a run's own, as it always was."""
    return order.settings.program_sha256 or gather(order.settings.program).sha256


def _unsaid(first: int, last: int) -> None:
    pass


def _compute(pipe_fd: int) -> NoReturn:
    """The whole life of a process that computes."""
    # Who else held it would make a dead process look alive: what it starts, and what it forks.
    os.set_inheritable(pipe_fd, False)
    own = os.getpid()
    os.register_at_fork(after_in_child=lambda: os.close(pipe_fd) if os.getppid() == own else None)
    faulthandler.enable()
    bear_any_text()
    stamp_output()
    pipe: Pipe = Connection(pipe_fd)
    code = 0
    try:
        with contextlib.suppress(EOFError):
            _Working(pipe).run()
    except ElasticFlowError as error:
        kind = "RunError" if isinstance(error, OutsideError) else type(error).__name__
        with contextlib.suppress(OSError):
            pipe.send_bytes(msgspec.msgpack.encode(WorkRefused(str(error), kind)))
    except BaseException:  # noqa: BLE001  (its log is all that is left of it)
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # tidying up after a framework takes long


def _fork(order: ForkOrder, fds: list[int]) -> None:
    """fds: of its pipe and of its log."""
    pipe_fd, log_fd = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    _compute(pipe_fd)


def main() -> None:
    """See the module's docstring."""
    parent, fd = map(int, sys.argv[1:3])
    die_with_parent(parent)
    if len(sys.argv) == 3:
        _compute(fd)
    with contextlib.suppress(ElasticFlowError):  # what is wrong with the program those say who load it
        warm_up(imports(sys.argv[3]))
    if num_threads() > 1:
        os._exit(0)
    gc.freeze()  # children need not look at what was imported, nor copy its pages for that
    Forker(sockets.socket(fileno=fd), _fork).run(READY)
    os._exit(0)


if __name__ == "__main__":
    main()
