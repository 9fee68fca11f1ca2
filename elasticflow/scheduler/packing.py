"""Plans for many jobs at once: by deadline, each the cheapest that what is left over allows.

Where a job does not fit, the dearest of those without a promise that come no later gives way: for one
machine and jobs of one size that is the rule of Moore and Hodgson, which loses fewest jobs. Where all have
promises, the one that does not fit is planned before all others, and they around it. If that does not help
either, the world has become worse than was promised for: the dearest will be late, and has what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from elasticflow.scheduler.balance import Player, balance
from elasticflow.scheduler.shares import (
    Need,
    SharePlan,
    carried_plan,
    cheapest_plan,
    fastest_plan,
    fastest_s,
    steady_plan,
)
from elasticflow.scheduler.timeline import ClusterTimeline
from elasticflow.scheduler.tracks import Standing, Track

SNAPSHOT_EVERY = 32
ENOUGH_AGAIN = 256
MAX_URGENT = 8
"""So many may be planned before all others"""
ROUNDING_S = 1e-6
"""What sums of times may be wrong by."""


@dataclass(frozen=True)
class Rules:
    """margin_*: how long before its deadline a plan ends if it can: a part of what is left, up to a limit."""

    margin_part: float = 0.01
    margin_least_s: float = 12.0
    margin_max_s: float = 60.0
    max_steps: int = 256


@dataclass
class Packing:
    """plans by job. dropped: had no promise, and have no room. late: were promised, and cannot be in time."""

    timeline: ClusterTimeline
    order: list[Track]
    plans: dict[str, SharePlan] = field(default_factory=dict)
    dropped: list[Track] = field(default_factory=list)
    late: list[Track] = field(default_factory=list)
    num_urgent: int = 0
    num_again: int = 0
    num_carried: int = 0
    aims_s: dict[str, float] = field(default_factory=dict)
    """Of soft jobs that are planned later than they were to be."""

    def add(self, track: Track, plan: SharePlan) -> None:
        """The job will have these GPUs."""
        self.plans[track.job_id] = plan
        self.timeline.take(plan.shares, plan.finish_s)

    @property
    def in_haste(self) -> bool:
        """So many were planned again that from now on nobody looks for the dearest: who has no promise and
        does not fit gives way itself, and all without a promise to one that has one."""
        return self.num_again > ENOUGH_AGAIN + len(self.order) // 4

    def has_hopeful_before(self, at: int) -> bool:
        """Whether somebody without a promise is in the order up to this one."""
        return any(_is_hopeful(self.order[one]) for one in range(at + 1))

    def make_room(self, at: int) -> int:
        """Somebody gives way to ``order[at]``, or it is planned earlier; returns from where to plan again."""
        if self.in_haste and _is_hopeful(self.order[at]):
            return self._drop(at, self.dropped)
        hopeful = [one for one in range(at + 1) if _is_hopeful(self.order[one])]
        if hopeful and self.in_haste:
            for position in reversed(hopeful):
                self._drop(position, self.dropped)
            return hopeful[0]
        if hopeful:
            return self._drop(max(hopeful, key=self._dearness), self.dropped)
        if self.num_urgent < MAX_URGENT and at > self.num_urgent:
            self.order.insert(0, self.order.pop(at))
            self.num_urgent += 1
            return 0
        return self._drop(max(range(at + 1), key=self._dearness), self.late)

    def _drop(self, position: int, to: list[Track]) -> int:
        to.append(self.order.pop(position))
        self.plans.pop(to[-1].job_id, None)
        return position

    def _dearness(self, position: int) -> tuple[int, bool, float]:
        """Low priority first, then who loses only a part by it, then GPU-seconds; of equals the first."""
        track = self.order[position]
        plan, is_soft = self.plans.get(track.job_id), bool(track.job.soft) and _is_hopeful(track)
        return -track.job.priority, is_soft, plan.gpu_seconds if plan else track.steady_cost()


def pack(tracks: Iterable[Track], empty: ClusterTimeline, rules: Rules) -> Packing:
    """Plans for all of them that fit; every promised job has one, be it late.

    empty: what there is before anybody takes anything.
    """
    packing = Packing(empty.copy(), by_deadline(tracks))
    snapshots: dict[int, ClusterTimeline] = {}
    at = 0
    while at < len(packing.order):
        if at % SNAPSHOT_EVERY == 0:
            snapshots[at] = packing.timeline.copy()
        track = packing.order[at]
        plan = plan_one(track, packing.timeline, rules)
        if plan is None and not _is_hopeful(track) and not packing.has_hopeful_before(at):
            old = None if packing.num_urgent else carry(packing, empty, rules)
            if old is not None:
                packing = old
                break
            plan = _rounded(track, packing.timeline) or _by_profile(track, packing.timeline)
        if plan is not None:
            packing.add(track, plan)
            at += 1
            continue
        position = packing.make_room(at)
        if position < at:
            position -= position % SNAPSHOT_EVERY
            packing.num_again += at - position
            at, packing.timeline = position, snapshots[position].copy()
    for track in by_deadline(packing.late):
        plan = _fastest(track, packing.timeline)
        if plan is not None:
            packing.add(track, plan)
    return packing


def let_end(
    packing: Packing,
    tracks: Iterable[Track],
    empty: ClusterTimeline,
    rules: Rules,
    ends_soon: Callable[[Track], bool],
) -> Packing | None:
    """Late ones that are almost done keep what they have until then, and all others are planned around them.

    None if there are none, or more would be late by it. Nobody keeps what is not there any more.
    """
    around, ending = empty.copy(), {}
    for track in packing.late:
        finish_s, size = track.finish_s(), len(track.gpus)
        if size and ends_soon(track) and around.lowest_before(finish_s) >= size:
            around.take(size, finish_s)
            ending[track.job_id] = track
    if not ending:
        return None
    other = pack([one for one in tracks if one.job_id not in ending], around, rules)
    if len(other.late) + len(ending) > len(packing.late):
        return None
    for track in ending.values():
        plan = steady_plan(track.need(inf, track.ladders.expected), empty.now_s)
        if plan is not None:
            other.plans[track.job_id] = plan
    other.late += ending.values()
    return other


def _is_hopeful(track: Track) -> bool:
    return track.standing is not Standing.PROMISED


def carry(packing: Packing, empty: ClusterTimeline, rules: Rules) -> Packing | None:
    """The plans that the promised jobs had, from now on; those without a promise have none. None if that
    does not do: a plan that was kept to goes on to do, whatever a new one by deadline would be."""
    promised = [one for one in packing.order if not _is_hopeful(one)]
    others = [one for one in packing.order if _is_hopeful(one)]
    carried = kept(promised, empty, rules)
    if carried is not None:
        carried.dropped, carried.late = packing.dropped + others, packing.late
        carried.num_carried = len(promised)
    return carried


def kept(tracks: Iterable[Track], empty: ClusterTimeline, rules: Rules) -> Packing | None:
    """All keep the plans that they had; who had none, or whose plan does not do any more, is dropped. None if
    one of these has a promise."""
    packing = Packing(empty.copy(), by_deadline(tracks))
    for track in packing.order:
        plan = None
        if track.plan is not None:
            safe = track.need(track.deadline_s, track.ladders.safe)
            expected = track.need(track.deadline_s, track.ladders.expected)
            plan = carried_plan(safe, packing.timeline, track.plan)
            if plan is None and (unsafe := carried_plan(expected, packing.timeline, track.plan)):
                plan = unsafe._replace(is_safe=not _is_hopeful(track))
        if plan is not None:
            packing.add(track, plan)
        elif _is_hopeful(track):
            packing.dropped.append(track)
        else:
            return None
    return packing


def rebalanced(tracks: Sequence[Track], empty: ClusterTimeline, rules: Rules) -> Packing | None:
    """Plans of jobs that make room for one another; None if those with a promise do not come to fit."""
    players = [player for track in tracks if (player := _player(track, empty.now_s, rules))]
    plans = balance(players, empty)
    packing = Packing(empty.copy(), by_deadline(tracks))
    needs = {one.name: one.need for one in players}
    for track in packing.order:
        guide = plans.get(track.job_id)
        plan = carried_plan(needs[track.job_id], packing.timeline, guide) if guide else None
        if plan is not None and guide is not None:
            packing.add(track, plan._replace(is_safe=guide.is_safe))
        elif _is_hopeful(track):
            packing.dropped.append(track)
        else:
            return None
    return packing


def _player(track: Track, now_s: float, rules: Rules) -> Player | None:
    """The job with the most careful need that it can meet alone."""
    safe, expected = track.ladders.safe, track.ladders.expected
    ways = [(track.deadline_s - _margin_s(track, now_s, rules), safe), (track.deadline_s, safe)]
    if expected is not safe:
        ways.append((track.deadline_s, expected))
    for deadline_s, of in ways:
        need = track.need(deadline_s, of)
        if fastest_s(need) <= deadline_s - now_s:
            return Player(
                track.job_id,
                need,
                not _is_hopeful(track),
                track.job.priority,
                track.steady_cost(),
                of is safe,
            )
    return None


def by_deadline(tracks: Iterable[Track]) -> list[Track]:
    """The order in which jobs are planned; never by chance."""
    return sorted(tracks, key=lambda one: (one.deadline_s, one.job.submit_s, one.job_id))


def plan_one(track: Track, timeline: ClusterTimeline, rules: Rules) -> SharePlan | None:
    """The cheapest plan: with a margin if there is one; by the bare profile only without a promise."""
    deadline_s, safe = track.deadline_s, track.ladders.safe
    margin_s = _margin_s(track, timeline.now_s, rules)
    plan = cheapest_plan(track.need(deadline_s - margin_s, safe), timeline)
    plan = plan or cheapest_plan(track.need(deadline_s, safe), timeline)
    if plan is None and track.standing is not Standing.PROMISED:
        plan = _by_profile(track, timeline)
    return plan


def _margin_s(track: Track, now_s: float, rules: Rules) -> float:
    """How long before its deadline its plan ends if it can."""
    part_s = (track.deadline_s - now_s) * rules.margin_part
    return min(max(part_s, rules.margin_least_s), rules.margin_max_s)


def _rounded(track: Track, timeline: ClusterTimeline) -> SharePlan | None:
    """The cheapest plan of a promised job that has no time to lose: sums of times must not make it late."""
    if track.deadline_s <= timeline.now_s:
        return None
    return cheapest_plan(track.need(track.deadline_s + ROUNDING_S, track.ladders.safe), timeline)


def _by_profile(track: Track, timeline: ClusterTimeline) -> SharePlan | None:
    """The cheapest plan if the profile is right."""
    expected = track.ladders.expected
    if expected is track.ladders.safe:
        return None
    return cheapest_plan(track.need(track.deadline_s, expected), timeline, is_safe=False)


def _fastest(track: Track, timeline: ClusterTimeline) -> SharePlan | None:
    ladder = track.ladders.expected
    return fastest_plan(Need(ladder, track.still_to_do, track.deadline_s, len(track.gpus)), timeline)
