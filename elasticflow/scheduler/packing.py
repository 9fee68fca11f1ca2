"""Plans for many jobs at once: by deadline, each the cheapest that what is left over allows.

Where a job does not fit, the dearest of those without a promise that come no later gives way: for one
machine and jobs of one size that is the rule of Moore and Hodgson, which loses fewest jobs. Where all have
promises, the one that does not fit is planned before all others, and they around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from elasticflow.scheduler.shares import Need, SharePlan, cheapest_plan, fastest_plan
from elasticflow.scheduler.timeline import Timeline
from elasticflow.scheduler.tracks import Standing, Track

SNAPSHOT_EVERY = 32
MAX_URGENT = 8
"""So many may be planned before all others; whoever is still late is as early as can be."""


@dataclass(frozen=True)
class Rules:
    """margin_*: how long before its deadline a plan ends if it can: a part of what is left, at most so long."""

    margin_part: float = 0.01
    margin_max_s: float = 60.0
    max_steps: int = 256


@dataclass
class Packing:
    """plans by job. dropped: had no promise, and have no room. late: were promised, and cannot be in time."""

    timeline: Timeline
    order: list[Track]
    plans: dict[str, SharePlan] = field(default_factory=dict)
    dropped: list[Track] = field(default_factory=list)
    late: list[Track] = field(default_factory=list)
    num_urgent: int = 0

    def make_room(self, at: int) -> int:
        """Somebody gives way to ``order[at]``, or it is planned earlier; returns from where to plan again."""
        victim = _who_gives_way(self.order[: at + 1], self.plans)
        if victim is not None:
            position = self.order.index(victim)
            self.dropped.append(self.order.pop(position))
            self.plans.pop(victim.job_id, None)
            return position
        if self.num_urgent < MAX_URGENT and at > self.num_urgent:
            self.order.insert(0, self.order.pop(at))
            self.num_urgent += 1
            return 0
        self.late.append(self.order[at])
        return at


def pack(tracks: Iterable[Track], now_s: float, num_gpus: int, rules: Rules) -> Packing:
    """Plans for all of them that fit; every promised job has one, be it late."""
    packing = Packing(Timeline(now_s, num_gpus, rules.max_steps), by_deadline(tracks))
    snapshots: dict[int, Timeline] = {}
    at = 0
    while at < len(packing.order):
        if at % SNAPSHOT_EVERY == 0:
            snapshots[at] = packing.timeline.copy()
        track = packing.order[at]
        is_late = track in packing.late
        plan = (_fastest if is_late else plan_one)(track, packing.timeline, rules)
        if plan is None and not is_late:
            at = packing.make_room(at) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
            packing.timeline = snapshots[at].copy()
            continue
        if plan is not None:
            packing.plans[track.job_id] = plan
            packing.timeline.take(plan.shares, plan.finish_s)
        at += 1
    return packing


def by_deadline(tracks: Iterable[Track]) -> list[Track]:
    """The order in which jobs are planned; never by chance."""
    return sorted(tracks, key=lambda one: (one.deadline_s, one.job.submit_s, one.job_id))


def plan_one(track: Track, timeline: Timeline, rules: Rules) -> SharePlan | None:
    """The cheapest plan: with a margin if there is one, by the bare profile if there is no other."""
    deadline_s, safe, expected = track.deadline_s, track.ladders.safe, track.ladders.expected
    margin_s = min((deadline_s - timeline.now_s) * rules.margin_part, rules.margin_max_s)
    plan = cheapest_plan(track.need(deadline_s - margin_s, safe), timeline)
    plan = plan or cheapest_plan(track.need(deadline_s, safe), timeline)
    if plan is None and expected is not safe:
        plan = cheapest_plan(track.need(deadline_s, expected), timeline, is_safe=False)
    return plan


def _who_gives_way(candidates: Sequence[Track], plans: dict[str, SharePlan]) -> Track | None:
    """Of those without a promise, of the lowest priority, the one that needs most GPU-seconds."""
    hopeful = [one for one in candidates if one.standing is not Standing.PROMISED]

    def rank(one: Track) -> tuple[int, float]:
        plan = plans.get(one.job_id)
        return -one.job.priority, plan.gpu_seconds if plan else one.steady_cost()

    return max(hopeful, key=rank) if hopeful else None


def _fastest(track: Track, timeline: Timeline, rules: Rules) -> SharePlan | None:
    ladder = track.ladders.expected
    return fastest_plan(Need(ladder, track.remaining, track.deadline_s, track.rung), timeline)
