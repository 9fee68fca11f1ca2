"""Who computes which slices: a pure function of the workers' speeds.

Ranges follow the speeds, so that all end together; among the ranges that do, those that are made of
the fewest nodes of the slice tree win, since each node is a push.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple

from elasticflow.step.slices import cover
from elasticflow.wire.messages import Share

SAME_SPEED = 1.15
"""Speeds that differ by less than this are taken as equal: noise must not move slices about."""
REACH = 2
"""How far a border may lie from where the speeds alone would put it."""


class Speed(NamedTuple):
    """A worker and the seconds it needs for a slice; 0 if that is not known."""

    worker: str
    slice_s: float


class _Cut(NamedTuple):
    """The best way found to end a range at ``border``, and the one before it; None: it is where all begin."""

    num_nodes: int
    border: int
    before: _Cut | None

    def borders(self) -> tuple[int, ...]:
        """All of them, in order."""
        found, cut = [], self
        while cut.before:
            found.append(cut.border)
            cut = cut.before
        return (cut.border, *reversed(found))


def make_plan(speeds: Sequence[Speed], num_slices: int) -> tuple[Share, ...]:
    """Shares of all slices, in the order of ``speeds``. Workers beyond the number of slices get none.

    Source of the idea of planning by measured speed: FlexFlow (MLSys 2019) and EasyScale (SC 2023).
    """
    if not speeds:
        return ()
    chosen = list(speeds)[:num_slices]
    rates = [1 / each for each in _levelled([speed.slice_s for speed in chosen])]
    borders = _borders(rates, num_slices)
    return tuple(
        Share(speed.worker, first, stop)
        for speed, first, stop in zip(chosen, borders, borders[1:], strict=False)
        if stop > first
    )


def unevenness(plan: Sequence[Share], speeds: Sequence[Speed], num_slices: int) -> float:
    """How many times longer the slowest takes by this plan than by the one that would be made now.

    At least 1. speeds: of all who could have slices.
    """
    levelled = _levelled([speed.slice_s for speed in speeds])
    slice_s = {speed.worker: each for speed, each in zip(speeds, levelled, strict=True)}

    def longest_s(shares: Sequence[Share]) -> float:
        return max(
            (slice_s.get(share.worker, 0.0) * (share.stop - share.first) for share in shares), default=0.0
        )

    best_s = longest_s(make_plan(speeds, num_slices))
    return max(longest_s(plan) / best_s, 1.0) if best_s else 1.0


def _levelled(slice_s: list[float]) -> list[float]:
    """Seconds a slice, with unknown ones taken as the middle, and those near the middle as equal to it."""
    known = sorted(each for each in slice_s if each > 0)
    if not known:
        return [1.0] * len(slice_s)
    middle = known[len(known) // 2]
    return [
        middle if each <= 0 or middle / SAME_SPEED <= each <= middle * SAME_SPEED else each
        for each in slice_s
    ]


def _borders(rates: Sequence[float], num_slices: int) -> tuple[int, ...]:
    """Borders between the ranges, with 0 and num_slices at the ends."""
    ideal = [sum_ * num_slices / sum(rates) for sum_ in accumulate(rates)]
    quickest = accumulate(_least_counts(rates, num_slices))
    candidates = [
        sorted(
            {min(best, num_slices), *range(max(0, int(at) - REACH), min(num_slices, int(at) + REACH + 1) + 1)}
        )
        for at, best in zip(ideal[:-1], quickest, strict=False)
    ] + [[num_slices]]
    longest = _least_time(rates, candidates)
    cuts = {0: _Cut(0, 0, None)}
    for rate, places in zip(rates, candidates, strict=True):
        following: dict[int, _Cut] = {}
        for stop in places:
            for first, cut in cuts.items():
                if first <= stop and (stop - first) / rate <= longest:
                    num_nodes = cut.num_nodes + _num_nodes(first, stop)
                    if stop not in following or num_nodes < following[stop].num_nodes:
                        following[stop] = _Cut(num_nodes, stop, cut)
        cuts = following
    return cuts[num_slices].borders()


@lru_cache(maxsize=1 << 16)
def _num_nodes(first: int, stop: int) -> int:
    return len(cover(first, stop))


def _least_counts(rates: Sequence[float], num_slices: int) -> list[int]:
    """How many slices each would have if nothing but the time of the slowest counted.

    Many slow workers who should get none move borders further from the ideal than ``REACH``.
    """
    counts = [int(num_slices * rate / sum(rates)) for rate in rates]
    ends = [
        ((count + 1) / rate, number) for number, (count, rate) in enumerate(zip(counts, rates, strict=True))
    ]
    heapify(ends)
    for _ in range(num_slices - sum(counts)):
        _, number = ends[0]
        counts[number] += 1
        heapreplace(ends, ((counts[number] + 1) / rates[number], number))
    return counts


def _least_time(rates: Sequence[float], candidates: Sequence[Sequence[int]]) -> float:
    """The least time in which the slowest range can be done."""
    times = {0: 0.0}
    for rate, places in zip(rates, candidates, strict=True):
        times = {
            stop: min(max(time, (stop - first) / rate) for first, time in times.items() if first <= stop)
            for stop in places
            if any(first <= stop for first in times)
        }
    # So that rounding does not leave out the best itself.
    return max(times.values()) * (1 + 1e-9)
