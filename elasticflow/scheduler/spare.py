"""Who gets the GPUs that no deadline needs: where they save most of what is still to be paid.

A job's next share saves, each second, so many iterations, each worth the GPU-seconds that its own plan would
spend on it. Returns diminish, so one share after the other is given to the best. A job is not made larger
where the change costs more than it brings, or more than its deadline allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from elasticflow.scheduler.ladder import Ladder


class Candidate(NamedTuple):
    """A job that may get spare GPUs.

    rung: what it gets anyway. has: GPUs that it has now. value: of an iteration. slack_s: time that it may
    lose. keep_s: for so long it may expect to keep what it gets. highest: it may have no higher rung.
    """

    job_id: str
    ladder: Ladder
    rung: int
    has: int
    value: float
    remaining: float
    slack_s: float
    keep_s: float
    highest: int
    user: str = ""


class _User:
    """The candidates of one user, the best next share on top."""

    def __init__(self, weight: float) -> None:
        self.weight, self.given = weight, 0
        self._heap: list[tuple[float, int, Candidate, int, int, int]] = []
        self._order = 0

    def offer(self, one: Candidate, rung: int, num_spare: int) -> None:
        """The job's next larger share of at most so many GPUs more, if it is worth having."""
        step = _next_share(one, rung, num_spare)
        if step is not None:
            gain, target, extra = step
            self._order += 1
            heapq.heappush(self._heap, (-gain, self._order, one, rung, target, extra))

    def take(self, num_spare: int) -> tuple[Candidate, int, int] | None:
        """The best share that there are GPUs for, which counts as given; None if there is none."""
        while self._heap:
            _, _, one, rung, target, extra = heapq.heappop(self._heap)
            if extra <= num_spare:
                self.given += extra
                return one, target, extra
            self.offer(one, rung, num_spare)  # fewer may be worth having, too
        return None


def distribute(
    candidates: Iterable[Candidate], num_spare: int, weights: Mapping[str, float] = MappingProxyType({})
) -> dict[str, int]:
    """The rung of each job that gets more than it has to.

    With weights, the next share is for the user who was given least by weight; without, all are one.
    """
    given: dict[str, int] = {}
    users: dict[str, _User] = {}
    for one in candidates:
        name = one.user if weights else ""
        users.setdefault(name, _User(weights.get(name, 1.0))).offer(one, one.rung, num_spare)
    while users and num_spare > 0:
        name = min(users, key=lambda each: (users[each].given / users[each].weight, each))
        taken = users[name].take(num_spare)
        if taken is None:
            del users[name]
            continue
        one, rung, extra = taken
        num_spare -= extra
        given[one.job_id] = rung
        users[name].offer(one, rung, num_spare)
    return given


def _next_share(one: Candidate, rung: int, num_spare: int) -> tuple[float, int, int] | None:
    """Of the larger shares that pay, the one that brings most a GPU: its gain, its rung, and GPUs.

    What the job has already costs nothing to keep; more must bring more than the change costs.
    """
    ladder = one.ladder
    rates, sizes, cost = ladder.rates, ladder.sizes, ladder.cost
    costs_s = cost[one.has.bit_length()]
    anyway_s = costs_s[one.rung] if one.rung else 0.0
    rate_now, rate, size = rates[ladder.rung(one.has)], rates[rung], sizes[rung]
    best = None
    for target in range(rung + 1, one.highest + 1):
        extra = sizes[target] - size
        if not extra or extra > num_spare:
            continue
        if sizes[target] > one.has:
            cost_s, new_rate = costs_s[target], rates[target]
            if cost_s - anyway_s + cost[ladder.bits[target]][one.rung] > one.slack_s:
                continue
            lasts_s = min(one.keep_s, cost_s + one.remaining / new_rate)
            if new_rate * (lasts_s - cost_s) <= rate_now * lasts_s:
                continue
        gain = (rates[target] - rate) * one.value / extra
        if best is None or gain > best[0]:
            best = gain, target, extra
    return best
