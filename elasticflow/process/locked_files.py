"""Files that are locked (``flock``) by whoever uses what they stand for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

LOOK_S = 0.01


def hold(path: Path) -> int:
    """Has it, as long as the descriptor is open. Raises BlockingIOError if another process has."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def has_left(path: Path, descriptor: int) -> bool:
    """Whether what is held there is not at its place any more: it was removed, moved or replaced.

    False where that cannot be told just now: an outage is none of these.
    """
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_nlink == 0:
            return True
        try:
            return not os.path.samestat(os.stat(path), os.fstat(descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
    return False


def is_locked(path: Path) -> bool:
    """Whether somebody has it for himself; nobody has what is not there. Raises OSError."""
    try:
        # A run that is kept may be read alone; and who opens a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:  # its folder may be removed at any time
        return False
    try:
        # Shared: of two that look at the same time neither takes the other for somebody who has it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until_free(path: Path, timeout_s: float | None) -> None:
    """Until nobody has it; for so long at most. None: however long, by the kernel's own wait, which has no
    limit. Raises OSError."""
    if timeout_s is None:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
        return
    deadline = time.monotonic() + timeout_s
    while is_locked(path) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
