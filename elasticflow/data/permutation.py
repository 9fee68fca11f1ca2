"""The order in which an epoch visits the rows: a pure function of (seed, epoch), kept nowhere.

The order is a keyed permutation that is computed for any range of positions on its own, so there is
no list of rows to hold, to send or to lose, and every process agrees on it. The permutation is a
Feistel network with cycle walking (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002: their generalised Feistel cipher over a domain ``left * right`` that just covers the rows).

Where rows come in blocks that are costly to open, an epoch permutes the blocks, takes them a few at
a time (a *window*), and permutes the rows inside each window: each block is wanted in one window only.

Only integer arithmetic and BLAKE2b are used, so the order is the same on every machine.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WINDOW_BLOCKS = 4
"""Blocks whose rows are mixed with each other, unless the caller says otherwise."""

_ROUNDS = 8
_ALL_WINDOWS = 2**64 - 1
"""Stands for "the order of the blocks" where a window's number stands in a key."""


def _word(value: int) -> Words:
    """A 0-d array: NumPy adds it to an array faster than a Python or NumPy scalar."""
    return np.array(value, np.uint64)


_MIX_1 = _word(0x9E3779B97F4A7C15)
_MIX_2 = _word(0xD6E8FEB86659FD93)
_HALF = _word(32)
_DROP = _word(16)


class Shuffle:
    """A different order of ``num_rows`` rows for every epoch.

    block_starts: (num_blocks + 1,) first row of each block, and ``num_rows`` at the end; None where
    any row is as cheap as any other. window_blocks: how many blocks are mixed with each other; more
    mix better, and want a larger cache.
    Raises ValueError if there are no rows, or if the blocks do not cover them.
    """

    def __init__(
        self, num_rows: int, seed: int, block_starts: Rows | None = None, window_blocks: int = WINDOW_BLOCKS
    ) -> None:
        if num_rows < 1 or window_blocks < 1:
            raise ValueError(f"{num_rows} rows in windows of {window_blocks} blocks; both must be at least 1")
        self.num_rows = num_rows
        self.seed = seed
        self.window_blocks = window_blocks
        self._block_starts = _checked_blocks(block_starts, num_rows)
        self._windows: dict[int, _Windows] = {}  # of the epochs asked for last

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """(stop - start,) row numbers at positions ``start..stop`` of the epoch's order.

        All positions ``0..num_rows`` together give each row once.
        Raises ValueError if the range leaves ``0..num_rows``.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise ValueError(f"positions {start}..{stop} of {self.num_rows} rows")
        if self._block_starts is None:
            return self._permute(epoch, 0, self.num_rows, start, stop).astype(np.int64)
        if start == stop:
            return np.empty(0, np.int64)
        windows = self._of_epoch(epoch)
        first, last = np.searchsorted(windows.starts, (start, stop - 1), side="right") - 1
        parts = [self._in_window(epoch, windows, window, start, stop) for window in range(first, last + 1)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _in_window(self, epoch: int, windows: _Windows, window: int, start: int, stop: int) -> Rows:
        """The rows at those of the positions ``start..stop`` that lie in one window."""
        base, end = int(windows.starts[window]), int(windows.starts[window + 1])
        inside = self._permute(epoch, window, end - base, max(start, base) - base, min(stop, end) - base)
        places = inside.astype(np.int64) + base
        blocks = np.searchsorted(windows.block_places, places, side="right") - 1
        rows: Rows = places + windows.shifts[blocks]
        return rows

    def _permute(self, epoch: int, window: int, size: int, start: int, stop: int) -> Words:
        return permute(
            np.arange(start, stop, dtype=np.uint64), size, keys_of_window(self.seed, epoch, window)
        )

    def next_window(self, epoch: int, position: int) -> Rows:
        """The first row of each block of the window after that of a position; none in the last window."""
        if self._block_starts is None:
            return np.empty(0, np.int64)
        windows = self._of_epoch(epoch)
        window = int(np.searchsorted(windows.starts, position, side="right"))
        blocks = slice(window * self.window_blocks, (window + 1) * self.window_blocks)
        rows: Rows = windows.block_places[blocks] + windows.shifts[blocks]
        return rows

    def _of_epoch(self, epoch: int) -> _Windows:
        if epoch not in self._windows:
            assert self._block_starts is not None
            num_blocks = len(self._block_starts) - 1
            order = self._permute(epoch, _ALL_WINDOWS, num_blocks, 0, num_blocks).astype(np.int64)
            self._windows = dict([*self._windows.items()][-1:])  # while one ends, the next is looked at
            self._windows[epoch] = _lay_out(self._block_starts, order, self.window_blocks)
        return self._windows[epoch]


class _Windows(NamedTuple):
    """How the blocks lie one after the other in one epoch. A *place* counts rows in that order."""

    starts: Rows
    """(num_windows + 1,) first place of each window, and the number of rows."""
    block_places: Rows
    """(num_blocks,) first place of each block, in the epoch's order of blocks."""
    shifts: Rows
    """(num_blocks,) what to add to a place in a block to have the row's number."""


def _lay_out(block_starts: Rows, order: Rows, window_blocks: int) -> _Windows:
    ends = np.cumsum(np.diff(block_starts)[order])
    places = np.concatenate([[0], ends[:-1]])
    return _Windows(
        starts=np.append(places[::window_blocks], ends[-1]),
        block_places=places,
        shifts=block_starts[order] - places,
    )


def _checked_blocks(block_starts: Rows | None, num_rows: int) -> Rows | None:
    if block_starts is None:
        return None
    starts = np.array(block_starts, np.int64)
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != num_rows or (np.diff(starts) < 0).any():
        raise ValueError(f"block_starts must rise from 0 to {num_rows}, the number of rows")
    return starts


def keys_of_window(seed: int, epoch: int, window: int) -> list[Words]:
    """One 64-bit key for each round; independent ones for each (seed, epoch, window)."""
    text = struct.pack("<3Q", seed & _ALL_WINDOWS, epoch, window)
    digest = hashlib.blake2b(text, digest_size=8 * _ROUNDS, person=b"elasticflow").digest()
    return [_word(key) for key in struct.unpack(f"<{_ROUNDS}Q", digest)]


def permute(places: Words, size: int, keys: list[Words]) -> Words:
    """Where a keyed permutation of ``0..size`` sends each place: a bijection for every set of keys.

    places: (n,) each below ``size``. Returns (n,).
    The network permutes a domain of at most ``size + sqrt(size)`` numbers; a result outside ``size``
    is sent through again until it is inside (cycle walking), which few need.
    """
    left = math.isqrt(size - 1) + 1 if size else 1
    right = -(-size // left)
    result = _feistel(places, _word(left), _word(right), keys)
    if left * right == size:
        return result
    outside = np.flatnonzero(result >= _word(size))
    while len(outside):
        again = _feistel(result[outside], _word(left), _word(right), keys)
        result[outside] = again
        outside = outside[again >= _word(size)]
    return result


def _feistel(places: Words, left: Words, right: Words, keys: list[Words]) -> Words:
    """A permutation of ``0..left * right``: each round adds a hash of one half to the other half."""
    a = places // right
    b = places - a * right
    scratch = np.empty_like(places)
    for number, key in enumerate(keys):
        if number % 2:
            _add_hash(b, a, key, right, scratch)
        else:
            _add_hash(a, b, key, left, scratch)
    a *= right
    a += b
    return a


def _add_hash(half: Words, other: Words, key: Words, modulus: Words, scratch: Words) -> None:
    """``half = (half + hash(other, key)) % modulus``, in place. The hash has 48 bits: no overflow."""
    np.add(other, key, out=scratch)
    np.multiply(scratch, _MIX_1, out=scratch)
    np.bitwise_xor(scratch, scratch >> _HALF, out=scratch)
    np.multiply(scratch, _MIX_2, out=scratch)
    np.right_shift(scratch, _DROP, out=scratch)
    half += scratch
    half %= modulus
