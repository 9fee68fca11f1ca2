"""The GPUs of one node as bits: where an aligned block of a power of two is free."""

from __future__ import annotations

from functools import cache


@cache
def block_of(free: int, size: int, width: int) -> int | None:
    """Where the best aligned block of ``size`` free GPUs starts, in a node of ``width``; None if nowhere.

    The best is in the smallest hole: it leaves larger ones whole.
    """
    starts = [at for at in range(0, width, size) if _is_free(free, at, size)]
    return min(starts, key=lambda at: (hole(free, at, size, width), at)) if starts else None


@cache
def largest_block(free: int, width: int) -> int:
    """The largest aligned block of free GPUs; 0 if none is free."""
    size = width
    while size:
        if any(_is_free(free, at, size) for at in range(0, width, size)):
            return size
        size //= 2
    return 0


def hole(free: int, at: int, size: int, width: int) -> int:
    """The size of the largest free aligned block around this one."""
    while size < width and _is_free(free, at - at % (2 * size), 2 * size):
        at, size = at - at % (2 * size), 2 * size
    return size


def bits(at: int, size: int) -> int:
    """The block as bits."""
    return ((1 << size) - 1) << at


def _is_free(free: int, at: int, size: int) -> bool:
    block = bits(at, size)
    return free & block == block
