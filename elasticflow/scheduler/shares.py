"""The minimum satisfactory share: the cheapest plan of GPUs over time that meets a job's deadline.

Following the paper's progressive filling: the lowest level such that the job, given at each moment the
level or what is free, whichever is less, is done in time. What each change of its GPUs costs is part of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elasticflow.scheduler.ladder import Floats, Ints, Ladder
from elasticflow.scheduler.timeline import ClusterTimeline

RUNG_OF_FREE: Ints = np.array([n.bit_length() for n in range(1 << 16)], dtype=np.int64)
"""The highest rung that so many free GPUs allow."""


class Need(NamedTuple):
    """What is left of a job: iterations, the time it may take, the GPUs it has.

    lost_s: how long it will still do no iteration if it keeps them.
    """

    ladder: Ladder
    remaining: float
    deadline_s: float
    num_gpus: int = 0
    lost_s: float = 0.0


class SharePlan(NamedTuple):
    """shares: GPUs in each step of the timeline up to ``finish_s``; one number if they are the same in all.

    starts_s: of these steps; None for the one number. grows_s: when it first has more than now; infinite if
    never. is_safe: it counts on nothing unmeasured.
    """

    level: int
    size_now: int
    shares: Ints | int
    finish_s: float
    gpu_seconds: float
    starts_s: Floats | None = None
    grows_s: float = np.inf
    is_safe: bool = True

    @property
    def most_gpus(self) -> int:
        """In any step."""
        return self.shares if isinstance(self.shares, int) else int(self.shares.max())

    def changes_s(self) -> Floats:
        """When its share becomes another, its end included."""
        if isinstance(self.shares, int) or self.starts_s is None:
            return np.array([self.finish_s])
        changed = self.shares[1:] != self.shares[:-1]
        return np.append(self.starts_s[1:][changed], self.finish_s)

    def shares_at(self, times_s: Floats) -> Ints:
        """GPUs at these times; after its end as many as at its end."""
        if isinstance(self.shares, int) or self.starts_s is None:
            return np.full(len(times_s), self.shares, dtype=np.int64)
        steps = self.starts_s.searchsorted(times_s, "right") - 1
        return self.shares[np.maximum(steps, 0)]


def cheapest_plan(need: Need, timeline: ClusterTimeline, is_safe: bool = True) -> SharePlan | None:
    """The plan of the lowest level that meets the deadline with the GPUs that are free; None if none does."""
    num_steps = timeline.num_before(need.deadline_s)
    if not num_steps:
        return None
    lowest_free = int(timeline.free[:num_steps].min())
    plan = _steady_plan(need, timeline.now_s, lowest_free) or _stepped_plan(need, timeline, num_steps)
    return plan if plan is None or is_safe else plan._replace(is_safe=False)


def fastest_plan(need: Need, timeline: ClusterTimeline) -> SharePlan | None:
    """The plan that is done earliest, whatever the deadline; None if the job cannot run at all."""
    ladder = need.ladder
    if not ladder.top:
        return None
    slowest_s = need.remaining / min(rate for rate in ladder.rates if rate) + max(map(max, ladder.cost))
    end_s = max(need.deadline_s, float(timeline.starts_s[-1]) + slowest_s + need.lost_s) + 1.0
    return _stepped_plan(need._replace(deadline_s=end_s), timeline, len(timeline.free), ladder.top)


def fastest_s(need: Need) -> float:
    """Seconds that it takes on the one size that is fastest; infinite if it can run on none."""
    ladder = need.ladder
    took = [
        (need.lost_s if ladder.sizes[rung] == need.num_gpus else ladder.change_s(need.num_gpus, rung))
        + need.remaining / rate
        for rung, rate in enumerate(ladder.rates)
        if rate
    ]
    return min(took, default=np.inf)


def carried_plan(need: Need, timeline: ClusterTimeline, old: SharePlan) -> SharePlan | None:
    """The plan with the GPUs that an older one had at each time; None if that does not do any more."""
    if isinstance(old.shares, int):
        plan = _steady_on(need, timeline.now_s, need.ladder.rung(old.shares))
        num_steps = max(timeline.num_before(plan.finish_s), 1) if plan else 0
        if plan and timeline.free[:num_steps].min() >= plan.size_now:
            return plan
    for time_s in old.changes_s().tolist():
        timeline.mark(time_s)
    num_steps = timeline.num_before(need.deadline_s)
    if not num_steps or not need.ladder.top:
        return None
    most = old.shares_at(timeline.starts_s[:num_steps])
    return _stepped_plan(need, timeline, num_steps, need.ladder.top, most)


def steady_plan(need: Need, now_s: float) -> SharePlan | None:
    """What it has, until it is done; None if that is not in time, or nothing."""
    return _steady_on(need, now_s, need.ladder.rung(need.num_gpus)) if need.num_gpus else None


def _steady_plan(need: Need, now_s: float, lowest_free: int) -> SharePlan | None:
    """The smallest share that is in time if it is the same all the time."""
    rungs = range(1, min(need.ladder.top, lowest_free.bit_length()) + 1)
    plans = (_steady_on(need, now_s, rung) for rung in rungs)
    return next((plan for plan in plans if plan), None)


def _steady_on(need: Need, now_s: float, rung: int) -> SharePlan | None:
    """This share all the time; None if that is not in time."""
    ladder = need.ladder
    rate, size = ladder.rates[rung], ladder.sizes[rung]
    if not rate:
        return None
    lost_s = need.lost_s if size == need.num_gpus else ladder.change_s(need.num_gpus, rung)
    took_s = lost_s + need.remaining / rate
    if now_s + took_s > need.deadline_s:
        return None
    return SharePlan(rung, size, size, now_s + took_s, size * took_s)


def _stepped_plan(
    need: Need, timeline: ClusterTimeline, num_steps: int, lowest: int = 1, most: Ints | None = None
) -> SharePlan | None:
    """At most the level at each step, and at most so many GPUs."""
    ladder = need.ladder
    starts_s = timeline.starts_s[:num_steps]
    lasts_s = np.diff(starts_s, append=need.deadline_s)
    free = timeline.free[:num_steps]
    allowed = RUNG_OF_FREE[free if most is None else np.minimum(free, most)]
    highest = min(int(allowed.max()), ladder.top)
    if not highest:
        return None
    levels = np.arange(min(lowest, highest), highest + 1)
    rungs = np.minimum(allowed[None, :], levels[:, None])
    done = ladder.vectors.rates[rungs] * (lasts_s - _lost(need, rungs))
    enough = done.sum(axis=1) >= need.remaining
    if not enough.any():
        return None
    row = int(enough.argmax())
    return _cut(need, timeline.starts_s, rungs[row], done[row], int(levels[row]))


def plan_of_shares(need: Need, starts_s: Floats, rungs: Ints) -> SharePlan | None:
    """The plan that has these rungs in these steps; None if it is not in time with them."""
    lasts_s = np.diff(starts_s[: len(rungs)], append=need.deadline_s)
    done = need.ladder.vectors.rates[rungs] * np.maximum(lasts_s - _lost(need, rungs[None, :])[0], 0.0)
    if done.sum() < need.remaining:
        return None
    return _cut(need, starts_s, rungs, done, int(rungs.max()))


def _lost(need: Need, rungs: Ints) -> Floats:
    """Seconds without an iteration at the start of each step."""
    vectors = need.ladder.vectors
    before = np.empty_like(rungs)
    before[:, 0], before[:, 1:] = need.num_gpus.bit_length(), vectors.bits[rungs[:, :-1]]
    lost: Floats = vectors.cost[before, rungs]
    if need.num_gpus:
        lost[vectors.sizes[rungs[:, 0]] == need.num_gpus, 0] = need.lost_s
    return lost


def _cut(need: Need, starts_s: Floats, rungs: Ints, done: npt.NDArray[np.float64], level: int) -> SharePlan:
    """The plan up to where the job is done."""
    ladder = need.ladder
    total = done.cumsum()
    last = int((total >= need.remaining).argmax())
    end_s = float(starts_s[last + 1]) if last + 1 < len(starts_s) else need.deadline_s
    end_s = min(end_s, need.deadline_s)
    finish_s = end_s - float(total[last] - need.remaining) / ladder.rates[rungs[last]]
    shares = ladder.vectors.sizes[rungs[: last + 1]]
    lasts_s = np.diff(starts_s[: last + 1], append=finish_s)
    grows = shares > shares[0]
    grows_s = float(starts_s[int(grows.argmax())]) if grows.any() else np.inf
    gpu_seconds = float((shares * lasts_s).sum())
    return SharePlan(
        level, int(shares[0]), shares, finish_s, gpu_seconds, starts_s[: last + 1].copy(), grows_s
    )
