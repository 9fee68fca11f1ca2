"""What a fault cost, as the workers that lived through it saw it. Pure; times are the monotonic clock's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.figures import median
from benchmarks.jobs import Interval
from benchmarks.kill import idle_by_tick

USUAL_S = 1.5
"""What is usual is told by so many seconds before a fault, in which there was none."""

Timelines = Mapping[str, Sequence[Interval]]


def _between(timeline: Iterable[Interval], since_s: float, until_s: float) -> list[Interval]:
    return [each for each in timeline if each.until_s >= since_s and each.since_s < until_s]


def idle_of_others(others: Timelines, struck_s: float, until_s: float) -> float | None:
    """Most seconds that one of them stood idle until it was given the missing work, beyond the usual.

    See ``benchmarks.kill``. None if nobody was there.
    """
    worst: float | None = None
    for timeline in others.values():
        intervals = _between(timeline, struck_s - USUAL_S, until_s)
        after = [each.tick for each in intervals if each.until_s >= struck_s]
        if not after:
            continue
        idle = idle_by_tick(intervals)
        usual = median([seconds for tick, seconds in idle.items() if tick < after[0]])
        # The victim's slices may be missing from this step, or, if it had pushed, from the next.
        here = max(idle.get(tick, 0.0) for tick in (after[0], after[0] + 1)) - usual
        worst = max(0.0, here, worst or 0.0)
    return worst


def _begins(timeline: Sequence[Interval]) -> list[tuple[float, int]]:
    """When a worker turned to a tick."""
    first = [(each.since_s, each.tick) for each in timeline[:1]]
    return first + [(b.since_s, b.tick) for a, b in pairwise(timeline) if b.tick != a.tick]


def _longest(timelines: Timelines, since_s: float, until_s: float) -> float:
    """Most seconds between two versions that ended in a time, as any worker saw them."""
    gaps = [
        b - a
        for timeline in timelines.values()
        for (a, _), (b, _) in pairwise(_begins(timeline))
        if since_s <= b < until_s
    ]
    return max(gaps, default=0.0)


def gap(others: Timelines, struck_s: float, until_s: float) -> float | None:
    """By how much the longest time between two versions after a fault exceeds the longest before it."""
    if not any(_between(timeline, struck_s, until_s) for timeline in others.values()):
        return None
    return max(0.0, _longest(others, struck_s, until_s) - _longest(others, struck_s - USUAL_S, struck_s))


class Recovery(NamedTuple):
    """seconds: from a fault until the first new version. lost: versions made before, to be made again."""

    seconds: float
    lost: int


def recovery(timelines: Timelines, struck_s: float, until_s: float) -> Recovery | None:
    """How a run got over the loss of servers. None if that took nothing, or was not done in this time.

    All go on from one version; with the next one the run has made a new version.
    """
    resumed: list[Interval] = []
    reached = 0
    for timeline in timelines.values():
        intervals = _between(timeline, struck_s - USUAL_S, until_s)
        first = _resumed(intervals, struck_s)
        resumed += [first] if first else []
        before_s = first.since_s if first else struck_s
        reached = max([reached, *(each.tick for each in intervals if each.since_s < before_s)])
    if not resumed:
        return None
    begin_s, start = min(each.since_s for each in resumed), min(each.tick for each in resumed)
    new = [
        at_s
        for timeline in timelines.values()
        for at_s, tick in _begins(_between(timeline, begin_s, until_s))
        if at_s > begin_s and tick > start
    ]
    return Recovery(min(new) - struck_s, max(0, reached - start)) if new else None


def _resumed(intervals: Sequence[Interval], struck_s: float) -> Interval | None:
    """What a worker computed first after it had lost its servers, or has computed before, and does again."""
    recovering, highest, lived = False, -1, False
    for each in intervals:
        if each.until_s < struck_s:
            lived, highest = True, max(highest, each.tick)
        elif each.what == "recovering":
            recovering = True
        elif each.what == "computing":
            if lived and (recovering or each.tick < highest):
                return each
            highest = max(highest, each.tick)
    return None
