"""A job's choices as a ladder: rung 0 is no GPU, rung b the best share of at most 2**(b-1) GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.overheads import Overheads

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Vectors:
    """The same as arrays, for planning over many steps at once."""

    rates: Floats
    sizes: Ints
    bits: Ints
    cost: Floats


@dataclass(frozen=True)
class Ladder:
    """rates[b], sizes[b]: never falling with b. cost[a][b]: seconds lost by going from 2**(a-1) GPUs, or from
    none for a = 0, to rung b. bits[b]: the a of rung b."""

    rates: tuple[float, ...]
    sizes: tuple[int, ...]
    bits: tuple[int, ...]
    cost: tuple[tuple[float, ...], ...]
    vectors: Vectors

    @cached_property
    def top(self) -> int:
        """The highest rung."""
        return len(self.rates) - 1

    @cached_property
    def corners(self) -> Ints:
        """The rungs of its concave envelope, from 0 on: between them more GPUs bring less and less."""
        kept = [0]
        for rung in range(1, self.top + 1):
            if self.rates[rung] <= self.rates[kept[-1]]:
                continue
            while len(kept) > 1 and self._gain(kept[-2], kept[-1]) <= self._gain(kept[-1], rung):
                kept.pop()
            kept.append(rung)
        return np.array(kept)

    @cached_property
    def gains(self) -> Floats:
        """Iterations a second from each corner to the next."""
        return np.diff(self.vectors.rates[self.corners])

    def _gain(self, low: int, high: int) -> float:
        """Iterations a second that a GPU brings from one rung to another."""
        return (self.rates[high] - self.rates[low]) / (self.sizes[high] - self.sizes[low])

    def rung(self, num_gpus: int) -> int:
        """The rung of a share that is on the ladder."""
        return min(num_gpus.bit_length(), self.top)

    def change_s(self, num_gpus: int, rung: int) -> float:
        """Seconds lost by going from so many GPUs to a rung."""
        return self.cost[num_gpus.bit_length()][rung]

    def rung_in_time(self, iterations: float, left_s: float) -> int:
        """The lowest rung that does so many iterations in time; 0 if none does."""
        needed = iterations / left_s if left_s > 0 else inf
        return next((rung for rung, rate in enumerate(self.rates) if rate >= needed), 0)


def ladder(curve: Curve, max_gpus: int, overheads: Overheads) -> Ladder:
    """The ladder of a curve: only powers of two that are faster than all smaller ones."""
    rates, sizes = [0.0], [0]
    known = [size for size in curve.sizes if size & (size - 1) == 0 and size <= max_gpus]
    for rung in range(1, max(known, default=0).bit_length() + 1):
        size = 1 << (rung - 1)
        is_better = size in known and curve.rate(size) > rates[-1]
        sizes.append(size if is_better else sizes[-1])
        rates.append(curve.rate(size) if is_better else rates[-1])
    steps = _steps(tuple(sizes), max_gpus, overheads)
    vectors = Vectors(np.array(rates), steps.sizes, steps.bits, steps.cost)
    return Ladder(tuple(rates), tuple(sizes), steps.of_bits, steps.of_cost, vectors)


class _Steps(NamedTuple):
    """What ladders of the same sizes have in common."""

    sizes: Ints
    bits: Ints
    cost: Floats
    of_bits: tuple[int, ...]
    of_cost: tuple[tuple[float, ...], ...]


@lru_cache(1024)
def _steps(sizes: tuple[int, ...], max_gpus: int, overheads: Overheads) -> _Steps:
    befores = [0, *(1 << bit for bit in range(max_gpus.bit_length()))]
    cost = tuple(tuple(overheads.resize_s(before, after) for after in sizes) for before in befores)
    bits = tuple(size.bit_length() for size in sizes)
    return _Steps(np.array(sizes), np.array(bits), np.array(cost), bits, cost)
