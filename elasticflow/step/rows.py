"""Rows of embedding tables: keys, first values, and sums of gradients along the slice tree.

An id is any 64-bit integer of the user's. Its *key* is the same number, well mixed (a bijection): sorted
keys are spread evenly, so the top bits of a key say in which *bucket* it lies, and buckets are what servers
hold and checkpoints store. Wherever arrays of keys go they are ascending, each key once.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elasticflow.embedding import Constant, Initializer, Normal, Uniform
from elasticflow.hashing import GAMMA, mixed

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

BUCKET_BITS = 6
FRAME_BYTES = 4 << 20
NUM_BUCKETS = 1 << BUCKET_BITS
"""Of each table: so many servers can share it. Fixed, so that checkpoints fit any number of servers."""
EARLY_MOST = 1_000
"""So many questions of a worker may wait at a server for a version that is not made yet."""

_FIRST_BACK, _SECOND_BACK = np.uint64(0x96DE1B173F119089), np.uint64(0x319642B2D24D8EC3)
_WORDS = 4
"""Of 64 random bits, for a number that is to look normal: three fields of 21 bits each."""
_FIELDS = 3 * _WORDS


def keys_of(ids: npt.NDArray[np.int64]) -> Keys:
    """The keys of ids, one by one, in their order and shape."""
    keys: Keys = np.array(ids, np.int64).view(np.uint64)
    keys += GAMMA
    return mixed(keys)


def ids_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The ids that have these keys."""
    z = np.array(keys, np.uint64)
    z ^= (z >> np.uint64(31)) ^ (z >> np.uint64(62))
    z *= _SECOND_BACK
    z ^= (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z *= _FIRST_BACK
    z ^= (z >> np.uint64(30)) ^ (z >> np.uint64(60))
    z -= GAMMA
    return z.view(np.int64)


class Grouped(NamedTuple):
    """n ids by key, of which k occur.

    keys: (k,), ascending. order: (n,), where the ids are, key by key, those of one as they occur: those of
    key i are ``order[starts[i]:starts[i + 1]]``. places: (n,), of each id the place of its key.
    """

    keys: Keys
    order: Places
    starts: Places
    places: Places


def grouped(ids: npt.NDArray[np.int64]) -> Grouped:
    """Ids, (n,), by key."""
    keys, places, counts = np.unique(keys_of(ids), return_inverse=True, return_counts=True)
    return Grouped(keys, np.argsort(places, kind="stable"), np.cumsum(counts) - counts, places)


def bounds(first: int, stop: int) -> tuple[int, int]:
    """The smallest and the largest key of buckets ``first..stop``."""
    shift = 64 - BUCKET_BITS
    return first << shift, (stop << shift) - 1


def part_of(keys: Keys, first: int, stop: int) -> slice:
    """Where in ascending keys those of buckets ``first..stop`` lie."""
    if first >= stop:
        return slice(0, 0)
    smallest, largest = bounds(first, stop)
    start = int(np.searchsorted(keys, np.uint64(smallest), "left"))
    return slice(start, int(np.searchsorted(keys, np.uint64(largest), "right")))


def blocks(num_rows: int, dim: int) -> list[slice]:
    """How rows are cut to travel: in frames of at most ``FRAME_BYTES`` of their values; never in none."""
    length = max(1, FRAME_BYTES // (4 * dim))
    return [slice(start, min(start + length, num_rows)) for start in range(0, num_rows or 1, length)]


class Rows(NamedTuple):
    """Gradients of some rows of a table. keys: (k,), ascending. values: (k, dim) float32."""

    keys: Keys
    values: Values

    def plus(self, right: Rows) -> Rows:
        """The sum of this, the left sibling, and the right one, over all keys of either."""
        if not len(right.keys) or not len(self.keys):
            return self if len(self.keys) else right
        place = np.searchsorted(self.keys, right.keys)
        known = self.keys.take(place, mode="clip") == right.keys
        old, new = np.flatnonzero(known), np.flatnonzero(~known)
        added = place[new] + np.arange(len(new))  # where the new ones go
        kept = np.ones(len(self.keys) + len(new), np.bool_)
        kept[added] = False
        source = np.empty(len(kept), np.intp)
        source[kept] = np.arange(len(self.keys))
        source[added] = len(self.keys) + new
        keys = np.concatenate([self.keys, right.keys]).take(source)
        values = np.concatenate([self.values, right.values]).take(source, axis=0)
        values[np.flatnonzero(kept)[place[old]]] = self.values[place[old]] + right.values[old]
        return Rows(keys, values)

    def of(self, first: int, stop: int) -> Rows:
        """Those in buckets ``first..stop``, not copied."""
        part = part_of(self.keys, first, stop)
        return Rows(self.keys[part], self.values[part])


def no_rows(dim: int) -> Rows:
    """Of a slice that looked nothing up."""
    return Rows(np.empty(0, np.uint64), np.empty((0, dim), np.float32))


def table_seed(seed: int, name: str) -> int:
    """64 bits of its own for each table of a run."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")


def first_values(initializer: Initializer, seed: int, keys: Keys, dim: int) -> Values:
    """What rows are before their first update, (k, dim): a function of (initializer, seed, key) alone.

    seed: of ``table_seed``. All of it is exact arithmetic on whole numbers, and then one product and one sum
    in float32: the same bits everywhere. A normal number is a sum of 12 uniform ones, so none is further
    out than 6 standard deviations.
    """
    if isinstance(initializer, Constant):
        return np.full((len(keys), dim), initializer.value, np.float32)
    if isinstance(initializer, Uniform):
        words = _words(seed, keys, dim)
        unit = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)  # in [0, 1), exact
        span = np.float32(initializer.high) - np.float32(initializer.low)
        values: Values = unit * span + np.float32(initializer.low)
        return values
    assert isinstance(initializer, Normal)
    words = _words(seed, keys, dim * _WORDS)
    low = np.uint64((1 << 21) - 1)
    total = sum((words >> np.uint64(21 * field)) & low for field in range(3))
    assert isinstance(total, np.ndarray)
    total = total.reshape(len(keys), dim, _WORDS).sum(axis=2, dtype=np.uint64).astype(np.int64)
    centred = (total - (_FIELDS * ((1 << 21) - 1)) // 2).astype(np.float32)
    normal: Values = centred * np.float32(2.0**-21 * initializer.std) + np.float32(initializer.mean)
    return normal


def _words(seed: int, keys: Keys, count: int) -> Keys:
    """64 random bits each, (k, count). Source: SplitMix64, one stream a key."""
    z: Keys = (keys ^ np.uint64(seed))[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GAMMA
    return mixed(z)
