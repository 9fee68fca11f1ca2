"""Memory that two processes of one host have in common: one lends a block, the other maps it.

A block is a file without a name (memfd): nothing of it is left once the last process that holds it is gone,
however it ended. The borrower opens it as ``/proc/PID/fd/FD``, which only the same user can, and knows it by
a secret at its beginning that was told over the authenticated connection: in another container the same
numbers may mean another process. Its size is sealed, so nobody can make the other fail by cutting it off.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elasticflow.step.layout import ALIGN_BYTES
from elasticflow.wire.messages import Lend

Bytes = npt.NDArray[np.uint8]

SECRET_BYTES = 16
_F_ADD_SEALS, _F_GET_SEALS, _SEALS = 1033, 1034, 1 | 2 | 4  # not to be sealed again, shrunk, or grown: Linux
_numbers = count()


class Block:
    """``num_bytes`` of this process's memory that can be lent; zeros at first, aligned to ``ALIGN_BYTES``.

    number: counts this process's blocks. Raises OSError where the system has no such memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self.number = next(_numbers)
        self._size = ALIGN_BYTES + num_bytes
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._fd = os.memfd_create("elasticflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, self._size)
        fcntl.fcntl(self._fd, _F_ADD_SEALS, _SEALS)
        whole = np.frombuffer(mmap.mmap(self._fd, self._size), np.uint8)
        whole[:SECRET_BYTES] = np.frombuffer(self._secret, np.uint8)
        self.memory: Bytes = whole[ALIGN_BYTES:]

    def lend(self) -> Lend:
        """What another process needs to ``borrow`` the block."""
        return Lend(
            number=self.number,
            host=this_host(),
            pid=os.getpid(),
            fd=self._fd,
            num_bytes=self._size,
            secret=self._secret,
        )

    def __del__(self) -> None:
        # The system may have refused it.
        if hasattr(self, "_fd"):
            os.close(self._fd)


def try_block(num_bytes: int) -> Block | None:
    """A block; None where the system, or this Python, has no such memory, which the log is told once."""
    try:
        return Block(num_bytes)
    except (OSError, AttributeError) as error:
        _tell_once(f"no memory that can be lent ({error}): arrays travel in messages, on one host as well")
        return None


@cache
def _tell_once(text: str) -> None:
    print(text, flush=True)


def borrow(lend: Lend, *, writable: bool) -> Bytes:
    """The memory of another process's block. Raises OSError if it cannot be had here."""
    path = f"/proc/{lend.pid}/fd/{lend.fd}"
    if lend.host != this_host() or not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.ENOENT, "not of this host", path)
    # Numbers are used again: by now it may be a pipe, which would keep who opens it waiting.
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS == _SEALS
        if not sealed or not ALIGN_BYTES <= os.fstat(fd).st_size == lend.num_bytes:
            raise OSError(errno.EINVAL, "not a block that was lent", path)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        whole = np.frombuffer(mmap.mmap(fd, lend.num_bytes, mmap.MAP_SHARED, protection), np.uint8)
    finally:
        os.close(fd)
    if whole[:SECRET_BYTES].tobytes() != lend.secret:
        raise OSError(errno.EINVAL, "not the block that was lent", path)
    return whole[ALIGN_BYTES:]


@cache
def this_host() -> str:
    """Tells this host, since it was started, from all others; empty where that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
