"""A job's choices as a ladder: rung 0 is no GPU, rung b the best share of at most 2**(b-1) GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.overheads import Overheads

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ladder:
    """rates[b], sizes[b]: never falling with b. cost[a, b]: seconds lost by going from rung a to rung b."""

    rates: Floats
    sizes: Ints
    cost: Floats

    @property
    def top(self) -> int:
        """The highest rung."""
        return len(self.rates) - 1

    def rung(self, num_gpus: int) -> int:
        """The rung of a share that is on the ladder."""
        return min(num_gpus.bit_length(), self.top)


def ladder(curve: Curve, max_gpus: int, overheads: Overheads) -> Ladder:
    """The ladder of a curve: only powers of two that are faster than all smaller ones."""
    useful = [size for size in curve.useful if size & (size - 1) == 0 and size <= max_gpus]
    rates, sizes = [0.0], [0]
    for rung in range(1, max(useful, default=0).bit_length() + 1):
        size = max((one for one in useful if one <= 1 << (rung - 1)), default=0)
        sizes.append(size)
        rates.append(curve.rate(size))
    cost = [[overheads.resize_s(before, after) for after in sizes] for before in sizes]
    return Ladder(np.array(rates), np.array(sizes, dtype=np.int64), np.array(cost))
