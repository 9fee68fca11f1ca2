"""Processes whose parent has ended, and which come to the nearest one above that adopts such."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on those of all that this process has begun become its children, which it has to bury."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Process numbers of this process's, the adopted ones as well; none where the kernel does not tell."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():  # each thread's
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def is_in_our_session(pid: int) -> bool:
    """Whether a child has begun no session of its own, as what is to live on does."""
    with contextlib.suppress(OSError):
        return os.getsid(pid) == os.getsid(0)
    return False
