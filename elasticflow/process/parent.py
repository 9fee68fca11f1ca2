"""A process that is not to outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Has this process get a signal when its parent dies. If it has died already, none ever comes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def die_with_parent(parent: int) -> None:
    """Has this process be killed when its parent, of that pid, dies; it ends here if it has died already."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
