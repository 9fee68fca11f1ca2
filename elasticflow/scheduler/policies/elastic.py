"""Ours: admit what can be promised, give each its minimum satisfactory share, the rest to where it helps most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticflow.scheduler.cluster import Shape
from elasticflow.scheduler.decisions import Admitted, Decision, Deferred, Rejected, WakeAt
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.shares import SharePlan, cheapest_plan, earliest_finish
from elasticflow.scheduler.spare import Candidate, distribute
from elasticflow.scheduler.timeline import Timeline
from elasticflow.scheduler.tracks import Standing, Track


@dataclass(frozen=True)
class Settings:
    """One set for every cluster."""

    margin_share: float = 0.01
    """Of the time to its deadline, kept as a margin where it can be."""
    margin_max_s: float = 60.0
    horizon_s: float = 600.0
    """For so long a job may expect to keep spare GPUs."""
    max_steps: int = 256


class Elastic(Policy):
    """See the module's docstring."""

    name = "elastic"

    def __init__(self, shape: Shape, overheads: Overheads, settings: Settings | None = None) -> None:
        super().__init__(shape, overheads)
        self.settings = settings or Settings()
        self.stats = {"fail": 0, "passes": 0}

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        for one in self.with_standing(Standing.PROMISED):
            pass
        timeline = self._replan(self.with_standing(Standing.PROMISED), now_s)
        decisions: list[Decision] = []
        for job in sorted(arrivals, key=lambda j: j.iterations * j.curve.gpu_seconds(j.curve.sizes[0])):
            if job.deadline_s is None:
                self.follow(job, now_s, Standing.BEST_EFFORT)
                continue
            track = self.follow(job, now_s, Standing.WAITING)
            timeline = self._consider(track, timeline, now_s, decisions, arrived=True)
        waiting = [t for t in self.with_standing(Standing.WAITING) if t.job not in arrivals]
        for track in sorted(waiting, key=self._cost):
            timeline = self._consider(track, timeline, now_s, decisions, arrived=False)
        self.timeline = timeline
        return decisions

    def _cost(self, track):
        return track.remaining / track.ladder.rates[1] if track.ladder.top else 0

    def _consider(self, track, timeline, now_s, decisions, arrived):
        plan = self._plan_one(track, timeline, now_s)
        if plan is not None:
            timeline.take(plan.shares, plan.finish_s)
            track.plan, track.standing = plan, Standing.PROMISED
            decisions.append(Admitted(track.job.job_id, f"level {plan.level}"))
            return timeline
        full = Timeline(now_s, self.placement.num_up, self.settings.max_steps)
        alone = cheapest_plan(track.need(track.deadline_s), full)
        if alone is None:
            decisions.append(Rejected(track.job.job_id, "cannot, even alone"))
            self.drop(track.job.job_id)
            return timeline
        if arrived or True:
            promised = self.with_standing(Standing.PROMISED)
            old = [(one, one.plan) for one in promised]
            track.standing = Standing.PROMISED
            attempt = self._replan(self.with_standing(Standing.PROMISED), now_s, strict=True)
            if attempt is not None:
                decisions.append(Admitted(track.job.job_id, "after all"))
                return attempt
            track.standing = Standing.WAITING
            track.plan = None
            for one, plan in old:
                one.plan = plan
        if arrived:
            decisions.append(Deferred(track.job.job_id, "wait", track.deadline_s))
        return timeline

    def _plan_one(self, track, timeline, now_s) -> SharePlan | None:
        left = track.deadline_s - now_s
        margin = min(left * self.settings.margin_share, self.settings.margin_max_s)
        return cheapest_plan(track.need(track.deadline_s - margin), timeline) or cheapest_plan(
            track.need(track.deadline_s), timeline
        )

    def _replan(self, tracks, now_s, strict=False):
        self.stats["passes"] += 1
        timeline = Timeline(now_s, self.placement.num_up, self.settings.max_steps)
        for track in tracks:
            plan = self._plan_one(track, timeline, now_s)
            if plan is None:
                if strict:
                    return None
                self.stats["fail"] += 1
                track.plan = None
                track.at_risk = True
                continue
            track.plan = plan
            timeline.take(plan.shares, plan.finish_s)
        return timeline

    def share(self, now_s: float) -> dict[str, int]:
        rungs: dict[str, int] = {}
        candidates = []
        total = self.placement.num_up
        for track in self.tracks.values():
            rung = track.plan.rung_now if track.plan else 0
            size = int(track.ladder.sizes[rung])
            if size > total:
                rung, size = 0, 0
            total -= size
            rungs[track.job.job_id] = rung
            lad = track.ladder
            if track.plan:
                value = track.plan.gpu_seconds / max(track.remaining, 1e-9)
                slack = track.deadline_s - track.plan.finish_s
            else:
                left = max(track.deadline_s - now_s, 1.0)
                need = int((lad.rates * left >= track.remaining).argmax())
                value = float(lad.sizes[need] / lad.rates[need]) if need else 1e-9
                slack = 1e9
            candidates.append(
                Candidate(track.job.job_id, lad, rung, track.rung, value, track.remaining, slack, self.settings.horizon_s)
            )
        rungs |= distribute(candidates, total)
        return {j: int(self.tracks[j].ladder.sizes[r]) for j, r in rungs.items() if r}

    def wake(self, now_s: float) -> list[Decision]:
        grows = [t.plan.grows_s for t in self.tracks.values() if t.plan]
        at = min(grows, default=float("inf"))
        return [WakeAt(at, "a plan grows")] if at < float("inf") else []

    def move_cost(self, job_id: str) -> float:
        track = self.tracks[job_id]
        cost = super().move_cost(job_id)
        if track.plan and track.deadline_s - track.plan.finish_s < self.overheads.move_s(len(track.gpus)):
            return 1e9 + cost
        return cost
