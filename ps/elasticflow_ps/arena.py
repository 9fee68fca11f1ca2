"""Memory for arrays that stay, in huge pages: their first use costs a tenth of that of small ones."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from elasticflow.layout import ALIGN_BYTES, aligned_empty

BLOCK_BYTES = 64 << 20
HUGE_PAGE_BYTES = 2 << 20
SMALL_BYTES = 256 << 10
"""Below this an array is allocated alone: a small model shall not take a huge page."""


class Arena:
    """Hands out arrays one after the other; a block is given back once nobody holds any of its arrays."""

    def __init__(self) -> None:
        self._rest: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def empty(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """An uninitialised array of bytes whose address is a multiple of ``ALIGN_BYTES``."""
        if num_bytes < SMALL_BYTES:
            return aligned_empty(num_bytes)
        if num_bytes > len(self._rest):
            self._rest = _block(max(num_bytes, BLOCK_BYTES))
        array = self._rest[:num_bytes]
        self._rest = self._rest[num_bytes + -num_bytes % ALIGN_BYTES :]
        return array


def _block(num_bytes: int) -> npt.NDArray[np.uint8]:
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)
    skip = -block.ctypes.data % HUGE_PAGE_BYTES
    return block[skip : skip + num_bytes]
