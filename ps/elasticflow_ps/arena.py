"""Memory for arrays that stay: in blocks that can be lent, or else in huge pages."""

from __future__ import annotations

import contextlib
import mmap
from typing import NamedTuple

import numpy as np

from elasticflow.step.layout import ALIGN_BYTES, aligned_empty
from elasticflow_ps.loans import Block, Bytes, try_block

BLOCK_BYTES = 64 << 20
MOST_BLOCK_BYTES = 1 << 30
HUGE_PAGE_BYTES = 2 << 20
SMALL_BYTES = 64 << 10
"""Below this an array is allocated alone: it is sent as it is wherever the receiver may be."""


class ArenaPlace(NamedTuple):
    """Where an array lies in memory that can be lent: its first byte in a block."""

    block: Block
    start: int


class Arena:
    """Hands out arrays one after the other; a block is given back once nobody holds any of its arrays.

    lends: whether the blocks can be lent. Those of others are huge pages, where the system has them.
    """

    def __init__(self, *, lends: bool = False) -> None:
        self._lends = lends
        self._block: Block | None = None
        self._rest: Bytes = np.empty(0, np.uint8)
        self._size = 0
        self._next_bytes = BLOCK_BYTES

    def empty(self, num_bytes: int) -> tuple[Bytes, ArenaPlace | None]:
        """An array of arbitrary bytes whose address is a multiple of ``ALIGN_BYTES``, and its place."""
        if num_bytes < SMALL_BYTES:
            return aligned_empty(num_bytes), None
        if num_bytes > len(self._rest):
            self._begin_block(max(num_bytes, self._next_bytes))
        place = ArenaPlace(self._block, self._size - len(self._rest)) if self._block else None
        array = self._rest[:num_bytes]
        self._rest = self._rest[num_bytes + -num_bytes % ALIGN_BYTES :]
        return array, place

    def _begin_block(self, num_bytes: int) -> None:
        """Each twice as large as the one before, so that even a large model takes few descriptors."""
        self._block = try_block(num_bytes) if self._lends else None
        self._rest = self._block.memory if self._block else _huge_pages(num_bytes)
        self._size = len(self._rest)
        self._next_bytes = min(MOST_BLOCK_BYTES, self._next_bytes * 2)


def _huge_pages(num_bytes: int) -> Bytes:
    """Their first use costs a tenth of that of small ones."""
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)
    # Only what is aligned can be a huge page.
    skip = -block.ctypes.data % HUGE_PAGE_BYTES
    return block[skip : skip + num_bytes]
