"""The whole life of a process that computes with a run's model.

``python -m MODULE PARENT SOCKET PROGRAM`` imports the program's framework, and forks them
(``process.forker``). PARENT is the number of the command's process, with which all end. Where an import
has started threads nothing can be forked: then it ends, and each process is begun anew, by
``python -m MODULE PARENT PIPE``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import socket as sockets
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn, TypeAlias

import msgspec

from elasticflow.applying.orders import WorkRefused
from elasticflow.errors import ElasticFlowError
from elasticflow.frameworks import warm_up
from elasticflow.process.forker import READY, Forker, ForkOrder, ends_here
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stacks import num_threads
from elasticflow.process.stamps import stamp_output
from elasticflow.process.texts import bear_any_text
from elasticflow.program.loading import foreign_names, import_all, imports
from elasticflow.worker.whose_fault import OutsideError

Pipe: TypeAlias = "Connection[bytes, bytes]"
Work = Callable[[Pipe], None]
"""Until the command closes the pipe, which raises EOFError."""


def _compute(work: Work, pipe_fd: int) -> NoReturn:
    # Who else held it would make a dead process look alive: what it starts, and what it forks.
    os.set_inheritable(pipe_fd, False)
    own = os.getpid()
    os.register_at_fork(after_in_child=lambda: os.close(pipe_fd) if os.getppid() == own else None)
    faulthandler.enable()
    bear_any_text()
    stamp_output()
    pipe: Pipe = Connection(pipe_fd)
    with ends_here():
        try:
            with contextlib.suppress(EOFError):
                work(pipe)
        except ElasticFlowError as error:
            kind = "RunError" if isinstance(error, OutsideError) else type(error).__name__
            with contextlib.suppress(OSError):
                pipe.send_bytes(msgspec.msgpack.encode(WorkRefused(str(error), kind)))
    raise AssertionError("not reached")


def live(work: Work) -> None:
    """See the module's docstring: the life of the forker, and of each process, by what ``argv`` has."""
    parent, fd = map(int, sys.argv[1:3])
    die_with_parent(parent)
    if len(sys.argv) == 3:
        _compute(work, fd)

    def fork(order: ForkOrder, fds: list[int]) -> None:
        """fds: of its pipe and of its log."""
        pipe_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        _compute(work, pipe_fd)

    with contextlib.suppress(ElasticFlowError):  # what is wrong with the program those say who load it
        import_all(foreign_names(sys.argv[3]))
        warm_up(imports(sys.argv[3]))
    if num_threads() > 1:
        os._exit(0)
    gc.freeze()  # children need not look at what was imported, nor copy its pages for that
    Forker(sockets.socket(fileno=fd), fork).run(READY)
    os._exit(0)
