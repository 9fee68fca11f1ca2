"""A throughput curve from a few measured points: how fast other sizes are, and how sure that is.

With the global batch held fixed, a step on ``m`` times the GPUs of the smallest measured size takes

    shared / m  +  fixed  +  rounds log2(m)  +  per_gpu (m - 1)

times as long as there: what is divided among the GPUs, what is not, an exchange in rounds, and what each
more GPU adds. None of the four can be negative. Where there are fewer points than terms, what is known of
programs in general decides (``USUAL``); the error says how little is known then. Where the largest measured
size is slower than a smaller one, none beyond is believed to be faster than it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.errors import ConfigError
from elasticflow.scheduler.curves import Curve, curve

Floats = NDArray[np.float64]

USUAL = np.array([0.85, 0.12, 0.02, 0.0005])
"""What shared, fixed, rounds and per_gpu are before anything is measured, in parts of the first step."""
SPREAD = np.array([0.3, 0.3, 0.1, 0.005])
"""How far from ``USUAL`` programs commonly are."""
MISFIT = 0.04
"""Relative error of the formula itself: what well measured profiles are off it, by their median."""

OTHERS, WITHIN = 200, 0.68
"""A fit is made again so often, of points that are off at random; two of three of these make the error."""


@dataclass(frozen=True)
class Fit:
    """A fitted curve. first_size, first_s: the smallest measured size, and seconds of a step on it.

    terms: shared, fixed, rounds, per_gpu. others: rows of terms that might have been found as well. misfit:
    relative error of the formula for this program.
    """

    measured: Mapping[int, float]
    first_size: int
    first_s: float
    terms: tuple[float, float, float, float]
    others: Floats
    misfit: float

    def rate(self, num_gpus: int) -> float:
        """Iterations a second on so many GPUs, as if they had not been measured."""
        features = _features(np.array([num_gpus / self.first_size]))[0]
        seconds = self.first_s * float(features @ np.array(self.terms))
        return min(1 / seconds if seconds else math.inf, self._most(num_gpus))

    def _most(self, num_gpus: int) -> float:
        """No size is faster than one measured size would be if it scaled perfectly; see also above."""
        largest = max(self.measured)
        if num_gpus > largest and self.measured[largest] < max(self.measured.values()):
            return self.measured[largest]
        return max(rate * max(1.0, num_gpus / size) for size, rate in self.measured.items())

    def error(self, num_gpus: int) -> float:
        """Relative error of a rate: 0.1 says that about two of three are within 10 %.

        Of a size that was measured: how far the formula is off.
        """
        if num_gpus in self.measured:
            return abs(self.rate(num_gpus) / self.measured[num_gpus] - 1)
        features = _features(np.array([num_gpus / self.first_size]))[0]
        mine_s = 1 / (self.rate(num_gpus) * self.first_s)
        others_s = np.maximum(self.others @ features, mine_s / 1000)  # one may have no term above 0
        off = np.abs(mine_s / others_s - 1)
        return math.hypot(float(np.quantile(off, WITHIN)), self.misfit)

    def best(self, num_gpus: int) -> float:
        """The measured rate where there is one, otherwise the formula's."""
        return self.measured.get(num_gpus) or self.rate(num_gpus)

    def curve(self, sizes: Iterable[int]) -> Curve:
        """The curve at these sizes and at the measured ones."""
        return curve({size: self.best(size) for size in {*sizes, *self.measured}})


def fit_curve(measured: Mapping[int, float], noise: Mapping[int, float] | None = None) -> Fit:
    """The curve through measured iterations/s by number of GPUs; one point is enough.

    noise: relative standard errors of the measured rates, where they are known. Least squares of relative
    errors, none of the terms negative, with ``USUAL`` as further measurements of error ``SPREAD``. Where the
    points are off the formula by more than that explains, so are those not measured: the error grows with it.
    Raises ConfigError.
    """
    _check(measured)
    sizes = sorted(measured)
    seconds = np.array([1 / measured[size] for size in sizes])
    relative_s = seconds / seconds[0]
    errors = np.array([math.hypot(MISFIT, (noise or {}).get(size, 0.0)) for size in sizes])
    features = _features(np.array(sizes) / sizes[0]) / relative_s[:, None]
    rows = np.vstack([features / errors[:, None], np.diag(1 / SPREAD)])
    wanted = np.concatenate([1 / errors, USUAL / SPREAD])
    terms = _least_squares(rows, wanted[:, None])[0]
    worse = max(1.0, float(np.sqrt(np.mean(((features @ terms - 1) / errors) ** 2))))
    return Fit(
        measured=dict(measured),
        first_size=sizes[0],
        first_s=float(seconds[0]),
        terms=(float(terms[0]), float(terms[1]), float(terms[2]), float(terms[3])),
        others=_least_squares(rows, wanted[:, None] + worse * _noise(len(wanted))),
        misfit=MISFIT * worse,
    )


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``most``."""
    return tuple(1 << power for power in range(most.bit_length()))


def _check(measured: Mapping[int, float]) -> None:
    if not measured:
        raise ConfigError("a curve cannot be fitted to nothing; measure at least one size")
    for size, rate in measured.items():
        if size < 1 or not 0 < rate < math.inf:
            raise ConfigError(
                f"a curve has {rate:g} iterations/s on {size} GPUs; sizes are from 1 up, and rates above 0: "
                "leave out the sizes that cannot run"
            )


def _features(times: Floats) -> Floats:
    """A row for each size, given as a multiple of the smallest, and a column for each term.

    What the exchange takes on the smallest size is in ``fixed``, so still smaller ones gain nothing there.
    """
    more = np.maximum(times, 1.0)
    return np.stack([1 / times, np.ones_like(times), np.log2(more), more - 1], axis=1)


def _noise(num_rows: int) -> Floats:
    """What measurements might be off by: always the same, so that a fit depends on its points alone."""
    return np.random.default_rng(0).standard_normal((num_rows, OTHERS))


def _least_squares(rows: Floats, wanted: Floats) -> Floats:
    """For each column of ``wanted`` the least squares solution without a negative term, as a row.

    That is the best over all sets of terms that are not 0; there are only 16 of them.
    """
    best, least = np.zeros((wanted.shape[1], rows.shape[1])), np.sum(wanted**2, axis=0)
    for count in range(1, rows.shape[1] + 1):
        for chosen in itertools.combinations(range(rows.shape[1]), count):
            found = np.zeros_like(best)
            found[:, chosen] = np.linalg.lstsq(rows[:, chosen], wanted, rcond=None)[0].T
            off = np.sum((rows @ found.T - wanted) ** 2, axis=0)
            better = (found >= 0).all(axis=1) & (off < least)
            best[better], least[better] = found[better], off[better]
    return best
