"""Memory that grows while it is used, of which nothing is ever copied."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from elasticflow_ps.arena import HUGE_PAGE_BYTES


class Growing:
    """Bytes, ``array``, at first zeros, as many as were asked for or some more.

    Private to this process. What is never touched takes no memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self._map(num_bytes)

    def _map(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, _whole(num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._look()

    def _look(self) -> None:
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)

    def resize(self, num_bytes: int) -> None:
        """Makes ``array`` another: longer, by zeros, or shorter. Nobody may hold a view of the one before.

        The system moves pages, not bytes. They stay huge only if they were so from the beginning.
        """
        if len(self.array) < HUGE_PAGE_BYTES <= num_bytes:
            old = self.array
            self._map(num_bytes)
            self.array[: len(old)] = old
        elif _whole(num_bytes) != len(self.array):
            del self.array
            try:
                self._memory.resize(_whole(num_bytes))
            finally:
                self._look()


def _whole(num_bytes: int) -> int:
    """In whole pages, of the kind that the system may take for so many bytes."""
    page = HUGE_PAGE_BYTES if num_bytes >= HUGE_PAGE_BYTES else mmap.PAGESIZE
    return max(page, num_bytes + -num_bytes % page)
