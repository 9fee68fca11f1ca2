"""Ours: promise what can be kept, give each its minimum satisfactory share, the rest to where it helps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from elasticflow.scheduler.admission import (
    AdmissionRules,
    earliest_deadline_s,
    hopeless,
    may_promise,
)
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.decisions import Admitted, Decision, Deferred, Rejected, WakeAt
from elasticflow.scheduler.demand import Demand
from elasticflow.scheduler.fairness import Quotas, within_quota
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.packing import Packing, Rules, kept, let_end, pack, plan_one, rebalanced
from elasticflow.scheduler.placement import Gpus
from elasticflow.scheduler.policies.base import PINNED, Policy
from elasticflow.scheduler.shares import Need, SharePlan, fastest_s
from elasticflow.scheduler.spare import Candidate, distribute
from elasticflow.scheduler.timeline import ClusterTimeline
from elasticflow.scheduler.tracks import Standing, Track


@dataclass(frozen=True)
class Settings:
    """One set for every cluster and every trace.

    keep_s: for so long a job may expect to keep spare GPUs. most_tries: so many of those that wait, the
    cheapest, are tried again at an event.
    """

    packing: Rules = field(default_factory=Rules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    keep_s: float = 600.0
    most_tries: int = 100


class Elastic(Policy):
    """See the module's docstring."""

    name = "elastic"

    def __init__(
        self,
        shape: ClusterShape,
        overheads: Overheads,
        quotas: Quotas | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(shape, overheads, quotas)
        self.settings = settings or Settings()
        self.demand = Demand()
        self._fresh: list[Track] = []
        self._packing = pack((), ClusterTimeline(0.0, 1), self.settings.packing)
        self.stats = {
            "late": 0,
            "dropped": 0,
            "urgent": 0,
            "carried": 0,
            "pinned": 0,
            "kept": 0,
            "rebalanced": 0,
        }

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        self._fresh = [self._arrive(job, now_s) for job in arrivals]
        rejected = self._reject_hopeless(now_s)
        self._packing = self._pack(now_s)
        return rejected

    def copy(self) -> Elastic:
        """One that can be told what might be."""
        other = copy.copy(self)
        other.placement, other.demand = self.placement.copy(), self.demand.copy()
        other.tracks = {name: replace(track) for name, track in self.tracks.items()}
        other.stats = dict(self.stats)
        return other

    def alone_s(self, job: Job) -> float:
        """Seconds that the job takes for sure on the whole cluster, on the GPUs that are up."""
        return fastest_s(Need(self.speeds.ladders(job).safe, job.iterations, inf))

    def share(self, now_s: float) -> dict[str, int]:
        rungs, left = self._shares_promised()
        if left:
            candidates = [self._candidate(track, rungs[job_id]) for job_id, track in self.tracks.items()]
            rungs |= distribute(candidates, left, self.quotas.weights)
        sizes = {job_id: self.tracks[job_id].ladder.sizes[rung] for job_id, rung in rungs.items()}
        return {job_id: size for job_id, size in sizes.items() if size}

    def arrange(self, sizes: dict[str, int]) -> dict[str, Gpus]:
        """Moves nobody who would be late for it: rather nobody grows, and nobody without a promise starts."""
        pinned = [job_id for job_id in self.tracks if self._is_pinned(job_id)]
        if not pinned:
            return super().arrange(sizes)
        for attempt in (sizes, self._without_growth(sizes), self._without_starts(sizes)):
            trial = self.placement.copy()
            changed = trial.arrange(attempt, self.move_cost)
            if not any(self._is_moved(job_id, changed) for job_id in pinned):
                break
        else:
            self.stats["pinned"] += 1
        self.placement = trial
        return changed

    def settle(self, now_s: float) -> list[Decision]:
        """Promises are given to those that have got what their plans want now."""
        return self._promise(self._packing) + self._defer(self._fresh, self._packing)

    def wake(self, now_s: float) -> list[Decision]:
        """When a plan grows, and when a job without a promise is almost done."""
        times = [track.plan.grows_s for track in self.tracks.values() if track.plan]
        soon_s = self.settings.admission.imminent_s
        for track in self._hopeful():
            times.append(track.finish_s() - soon_s if track.finish_s() > now_s + soon_s else track.finish_s())
            times.append(track.sure_s())
        later = [one for one in times if now_s < one < float("inf")]
        return [WakeAt(min(later), "a plan grows")] if later else []

    def move_cost(self, job_id: str) -> float:
        return super().move_cost(job_id) + (PINNED if self._is_pinned(job_id) else 0.0)

    def _is_pinned(self, job_id: str) -> bool:
        """It has a promise, and would be late if it were moved."""
        track = self.tracks[job_id]
        is_promised = track.standing is Standing.PROMISED and bool(track.gpus)
        return is_promised and track.slack_s < self.overheads.move_s(len(track.gpus))

    def _is_moved(self, job_id: str, changed: Mapping[str, Gpus]) -> bool:
        """To GPUs that it did not have, and not because it needs more."""
        had, has = self.tracks[job_id].gpus, changed.get(job_id, ())
        return len(has) <= len(had) and not set(has) <= set(had)

    def _without_growth(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Nobody has more than both its plan and what it has now."""
        return {
            job_id: min(size, max(self._planned(job_id), len(self.tracks[job_id].gpus)))
            for job_id, size in sizes.items()
        }

    def _without_starts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """And only those with a promise begin."""
        kept = self._without_growth(sizes)
        return {
            job_id: size
            for job_id, size in kept.items()
            if self.tracks[job_id].gpus or self.tracks[job_id].standing is Standing.PROMISED and size
        }

    def _planned(self, job_id: str) -> int:
        track = self.tracks[job_id]
        return track.plan.size_now if track.plan else 0

    def why(self, track: Track, before: int, after: int) -> str:
        planned = track.plan.size_now if track.plan else 0
        if not self.num_usable:
            return f"{before} to {after}: there are none just now"
        if before == after:
            return f"{after} GPUs elsewhere: makes room for a larger block"
        if after > max(planned, before):
            return f"{before} to {after}: no deadline needs them"
        if after > before:
            return f"{before} to {after}: its deadline needs {planned}"
        if track in self._packing.late:
            return f"{before} to {after}: others' deadlines need them, its own cannot be met"
        if after == 0:
            own = "" if track.job.is_best_effort else ", its own does not yet"
            return f"{before} to 0: others' deadlines need them{own}"
        own = "" if track.job.is_best_effort else f", its deadline {planned}"
        return f"{before} to {after}: others need them{own}"

    def _arrive(self, job: Job, now_s: float) -> Track:
        track = self.follow(job, now_s, Standing.BEST_EFFORT if job.is_best_effort else Standing.HOPEFUL)
        if not job.is_best_effort:
            track.cost = track.steady_cost()
            self.demand.add(now_s, track.cost)
        return track

    def _hopeful(self) -> list[Track]:
        wanted = (Standing.HOPEFUL, Standing.WAITING)
        return [track for track in self.tracks.values() if track.standing in wanted]

    def _reject_hopeless(self, now_s: float) -> list[Decision]:
        """Those that would be late, or too dear, even with the whole cluster to themselves."""
        decisions: list[Decision] = []
        for track in self._hopeful():
            why = self._aim(track, now_s)
            if why is not None:
                decisions.append(Rejected(track.job_id, *why))
                self.drop(track.job_id)
        return decisions

    def _aim(self, track: Track, now_s: float) -> tuple[str, float | None] | None:
        """Has it aim at the best moment that it could be done by alone; why there is none, or None."""
        track.aim_s = None
        why = hopeless(track, now_s)
        for aim_s in track.job.aims_s[1:]:
            if why is None:
                break
            track.aim_s = aim_s
            why = hopeless(track, now_s)
        return why

    def _pack(self, now_s: float) -> Packing:
        """Plans for all with a promise or hope; then for those that wait, if they disturb nobody.

        If not all have one: those that they had, or such as make room for one another, if that is better.
        """
        rules = self.settings.packing
        empty = self.empty_timeline(now_s, rules.max_steps)
        everybody = [one for one in self.tracks.values() if one.standing is not Standing.BEST_EFFORT]
        packed = [one for one in everybody if one.standing is not Standing.WAITING]
        packing = pack(packed, empty, rules)
        self.stats["late"] += len(packing.late)
        self.stats["dropped"] += len(packing.dropped)
        self.stats["urgent"] += packing.num_urgent
        self.stats["carried"] += packing.num_carried > 0
        self._fill(packing, everybody)
        other = let_end(packing, packed, empty, rules, lambda one: self._ends_soon(one, now_s))
        if other is not None:
            self._fill(other, everybody)
            if self._worth(other) >= self._worth(packing):
                packing = other
        for otherwise in (kept, rebalanced):
            if len(packing.plans) < len(everybody):
                other = otherwise(everybody, empty, rules)
                if other is not None:
                    self._fill(other, everybody)
                    if self._worth(other) > self._worth(packing):
                        packing = other
                        self.stats[otherwise.__name__] += 1
        for track in everybody:
            track.plan = packing.plans.get(track.job_id)
            track.aim_s = packing.aims_s.get(track.job_id, track.aim_s)
            if track.standing is not Standing.PROMISED:
                track.standing = Standing.HOPEFUL if track.plan else Standing.WAITING
        return packing

    def _ends_soon(self, track: Track, now_s: float) -> bool:
        return track.finish_s() <= now_s + self.settings.admission.imminent_s

    def _fill(self, packing: Packing, tracks: Sequence[Track]) -> None:
        """Plans for others too, the cheapest first, if they disturb nobody."""
        late = {track.job_id for track in packing.late}
        others = [one for one in tracks if one.job_id not in packing.plans and one.job_id not in late]
        by_cost = sorted(others, key=lambda one: (one.steady_cost(), one.job_id))
        for track in by_cost[: self.settings.most_tries]:
            plan = plan_one(track, packing.timeline, self.settings.packing)
            if plan is None and track.job.soft:
                plan = self._plan_later(track, packing)
            if plan is not None:
                packing.add(track, plan)

    def _plan_later(self, track: Track, packing: Packing) -> SharePlan | None:
        """A plan for a soft job by the best of its later moments for which there is room."""
        for aim_s in track.job.aims_s:
            if aim_s > track.deadline_s:
                plan = plan_one(replace(track, aim_s=aim_s), packing.timeline, self.settings.packing)
                if plan is not None:
                    packing.aims_s[track.job_id] = aim_s
                    return plan
        return None

    def _worth(self, packing: Packing) -> tuple[list[int], float]:
        """The priorities of those that would be in time, the highest first: more of them are worth more; then
        what it is worth in all to be done as soon as that."""
        late = {track.job_id for track in packing.late}
        in_time = [one for one in self.tracks.values() if one.job_id in packing.plans.keys() - late]
        value = sum(one.job.value_at(packing.aims_s.get(one.job_id, one.deadline_s)) for one in in_time)
        return sorted((track.job.priority for track in in_time), reverse=True), value

    def _promise(self, packing: Packing) -> list[Decision]:
        decisions: list[Decision] = []
        for track in self._hopeful():
            if track.plan is None or len(track.gpus) < track.plan.size_now:
                continue
            if track.plan.finish_s + track.surprise_s > track.deadline_s:
                continue
            why = may_promise(track, track.plan, packing.timeline, self.demand, self.settings.admission)
            promised = (one for one in self.tracks.values() if one.standing is Standing.PROMISED)
            if why is not None and within_quota(track, promised, self.quotas):
                track.standing = Standing.PROMISED
                if track.aim_s is not None:
                    why = f"{why}; worth {track.job.value_at(track.aim_s):.2f} of all by then"
                decisions.append(Admitted(track.job_id, why, track.aim_s))
        return decisions

    def _defer(self, fresh: Sequence[Track], packing: Packing) -> list[Decision]:
        decisions: list[Decision] = []
        for track in fresh:
            if track.standing is Standing.HOPEFUL and self.tracks.get(track.job_id) is track:
                promised = [one for one in self.tracks.values() if one.standing is Standing.PROMISED]
                text = (
                    "no promise yet: it would take what smaller jobs may need"
                    if within_quota(track, promised, self.quotas)
                    else f"no promise yet: {track.job.user}'s promises may take "
                    f"{self.quotas.limit(track.job.user):.0f} GPUs"
                )
                decisions.append(Deferred(track.job_id, text, track.deadline_s))
            elif track.standing is Standing.WAITING:
                at_s = earliest_deadline_s(track, packing.timeline)
                instead = "no deadline can" if at_s is None else f"{at_s:.0f} s could"
                text = f"no room beside those promised; {instead} be promised now"
                decisions.append(Deferred(track.job_id, text, track.deadline_s))
        return decisions

    def _shares_promised(self) -> tuple[dict[str, int], int]:
        """The rung of each by its plan, and the GPUs that are left."""
        rungs, left = {}, self.num_usable
        for track in self.tracks.values():
            rungs[track.job_id] = track.ladder.rung(track.plan.size_now) if track.plan else 0
            left -= track.ladder.sizes[rungs[track.job_id]]
        return rungs, left

    def _candidate(self, track: Track, rung: int) -> Candidate:
        """Spare GPUs are worth what they save of the job's own plan."""
        cost = track.plan.gpu_seconds if track.plan else track.steady_cost()
        value = 1e-9 if track.standing is Standing.BEST_EFFORT else cost / max(track.remaining, 1e-9)
        return Candidate(
            job_id=track.job_id,
            ladder=track.ladder,
            rung=rung,
            has=len(track.gpus),
            value=value,
            remaining=track.remaining,
            slack_s=track.slack_s,
            keep_s=self.settings.keep_s,
            highest=track.highest_affordable(),
            user=track.job.user,
        )
