"""A process that is not to outlive the one that started it, or to do its work a second time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
EXIT_COPY = 70
"""Of a copy that came back: EX_SOFTWARE of sysexits.h."""


def end_with_parent(number: int) -> None:
    """Has this process get a signal when its parent dies. If it has died already, none ever comes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def die_with_parent(parent: int) -> None:
    """Has this process be killed when its parent, of that pid, dies; it ends here if it has died already."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


@contextlib.contextmanager
def without_copies() -> Iterator[None]:
    """A copy of this process that is forked within it, and comes back, ends: it has the same connections."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"process {os.getpid()}, which the program had forked, came back, and is ended: a "
                    "child has to end by itself, with os._exit()",
                    file=sys.stderr,
                    flush=True,
                )
            os._exit(EXIT_COPY)
