"""Who gets the GPUs that no deadline needs: where they save most of what is still to be paid.

A job's next share saves, each second, so many iterations, each worth the GPU-seconds that its own plan would
spend on it. Returns diminish, so one share after the other is given to the best. A job is not made larger
where the change costs more than it brings, or more than its deadline allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from elasticflow.scheduler.ladder import Ladder


@dataclass(frozen=True)
class Candidate:
    """A job that may get spare GPUs.

    rung: what it gets anyway. now: what it has now. value: of an iteration. slack_s: time that it may lose.
    keep_s: for so long it may expect to keep what it gets.
    """

    job_id: str
    ladder: Ladder
    rung: int
    now: int
    value: float
    remaining: float
    slack_s: float
    keep_s: float


def distribute(candidates: Iterable[Candidate], num_spare: int) -> dict[str, int]:
    """The rung of each job that gets more than it has to."""
    given: dict[str, int] = {}
    heap: list[tuple[float, int, Candidate, int, int]] = []
    for order, one in enumerate(candidates):
        _offer(heap, order, one, one.rung)
    while heap and num_spare > 0:
        _, order, one, rung, extra = heapq.heappop(heap)
        if extra <= num_spare:
            num_spare -= extra
            given[one.job_id] = rung
            _offer(heap, order, one, rung)
    return given


def _offer(heap: list[tuple[float, int, Candidate, int, int]], order: int, one: Candidate, rung: int) -> None:
    """Puts the job's next larger share on the heap, if it is worth having."""
    step = _next_share(one, rung)
    if step is not None:
        gain, target, extra = step
        heapq.heappush(heap, (-gain, order, one, target, extra))


def _next_share(one: Candidate, rung: int) -> tuple[float, int, int] | None:
    """Of the larger shares that pay, the one that brings most a GPU."""
    ladder, best = one.ladder, None
    for target in range(rung + 1, ladder.top + 1):
        extra = int(ladder.sizes[target] - ladder.sizes[rung])
        if extra and _pays(one, target):
            gain = float(ladder.rates[target] - ladder.rates[rung]) * one.value / extra
            if best is None or gain > best[0]:
                best = gain, target, extra
    return best


def _pays(one: Candidate, target: int) -> bool:
    """What the job has already costs nothing to keep; more must bring more than the change costs."""
    if target <= one.now:
        return True
    ladder = one.ladder
    cost_s = float(ladder.cost[one.now, target])
    base_s = float(ladder.cost[one.now, one.rung]) if one.rung else 0.0
    if cost_s - base_s + ladder.cost[target, one.rung] > one.slack_s:
        return False
    lasts_s = min(one.keep_s, cost_s + one.remaining / float(ladder.rates[target]))
    return float(ladder.rates[target]) * (lasts_s - cost_s) > float(ladder.rates[one.now]) * lasts_s
