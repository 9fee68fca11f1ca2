"""Ours: admit what can be promised, give each its minimum satisfactory share, the rest to where it helps most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elasticflow.scheduler.cluster import Shape
from elasticflow.scheduler.decisions import Admitted, Decision, Deferred, Rejected, WakeAt
from elasticflow.scheduler.demand import Demand
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
    memory_s: float = 86400.0
    least_s: float = 3600.0
    rule: str = "never"
    kappa: float = 1.0


class Elastic(Policy):
    """See the module's docstring."""

    name = "elastic"

    def __init__(self, shape: Shape, overheads: Overheads, settings: Settings | None = None) -> None:
        super().__init__(shape, overheads)
        self.settings = settings or Settings()
        self.demand = Demand(self.settings.memory_s, self.settings.least_s)
        self.stats = {"fail": 0, "passes": 0, "drops": 0}

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        fresh = set()
        for job in arrivals:
            if job.deadline_s is None:
                self.follow(job, now_s, Standing.BEST_EFFORT)
                continue
            track = self.follow(job, now_s, Standing.WAITING)
            fresh.add(job.job_id)
            track.tentative = True
            self.demand.add(now_s, self._cost(track, now_s))
        self.full = Timeline(now_s, self.placement.num_up, self.settings.max_steps)
        for t in list(self.tracks.values()):
            if t.standing is Standing.WAITING and cheapest_plan(t.need(t.deadline_s), self.full) is None:
                decisions.append(Rejected(t.job.job_id, "cannot, even alone"))
                self.drop(t.job.job_id)
        timeline = self._pack(now_s)
        out = [t for t in self.tracks.values() if t.standing is Standing.WAITING and not t.tentative]
        for t in sorted(out, key=lambda t: self._cost(t, now_s)):
            plan = self._plan_one(t, timeline, now_s)
            if plan:
                t.plan, t.tentative = plan, True
                timeline.take(plan.shares, plan.finish_s)
        self.timeline = timeline
        tent = [t for t in self.tracks.values() if t.standing is Standing.WAITING and t.tentative]
        for t in sorted(tent, key=lambda t: t.plan.gpu_seconds):
            if self._promise(t, timeline, now_s):
                t.standing = Standing.PROMISED
                decisions.append(Admitted(t.job.job_id, f"level {t.plan.level}"))
        for t in self.tracks.values():
            if t.job.job_id in fresh and t.standing is Standing.WAITING:
                decisions.append(Deferred(t.job.job_id, "wait", t.deadline_s))
        return decisions

    def _promise(self, t, timeline, now_s):
        rule, kappa = self.settings.rule, self.settings.kappa
        if rule == "never":
            return t.finish_s() <= now_s + 30 
        if rule == "always":
            return True
        if t.finish_s() <= now_s + 30: return True
        k = timeline.num_before(t.deadline_s)
        dt = np.diff(timeline.starts_s[:k], append=t.deadline_s)
        left = float((timeline.free[:k] * dt).sum())
        if rule == "room":
            return left >= kappa * t.plan.gpu_seconds
        if rule == "demand":
            return left >= kappa * self.demand.of_smaller(t.plan.gpu_seconds, now_s, t.deadline_s - now_s)
        if rule == "fraction":
            return t.plan.gpu_seconds <= kappa * self.placement.num_up * (t.deadline_s - now_s)

    def _cost(self, track, now_s):
        lad = track.ladder
        left = max(track.deadline_s - now_s, 1.0)
        need = int((lad.rates * left >= track.remaining).argmax())
        return float(lad.sizes[need] / lad.rates[need]) * track.remaining if need else float("inf")

    def _plan_one(self, track, timeline, now_s) -> SharePlan | None:
        left = track.deadline_s - now_s
        margin = min(left * self.settings.margin_share, self.settings.margin_max_s)
        return cheapest_plan(track.need(track.deadline_s - margin), timeline) or cheapest_plan(
            track.need(track.deadline_s), timeline
        )

    def _pack(self, now_s):
        order = sorted([t for t in self.tracks.values() if t.standing is Standing.PROMISED or t.standing is Standing.WAITING and t.tentative],
                       key=lambda one: (one.deadline_s, one.job.submit_s, one.job.job_id))
        while True:
            self.stats["passes"] += 1
            timeline = Timeline(now_s, self.placement.num_up, self.settings.max_steps)
            failed = None
            for i, t in enumerate(order):
                plan = t.plan = self._plan_one(t, timeline, now_s)
                if plan is None:
                    cands = [u for u in order[: i + 1] if u.standing is Standing.WAITING]
                    if cands:
                        victim = max(cands, key=lambda u: u.plan.gpu_seconds if u.plan else self._cost(u, now_s))
                        victim.tentative, victim.plan = False, None
                        order.remove(victim)
                        self.stats["drops"] += 1
                        failed = True
                        break
                    self.stats["fail"] += 1
                    continue
                timeline.take(plan.shares, plan.finish_s)
            if not failed:
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
        grows += [t.finish_s() - 20 for t in self.tracks.values() if t.standing is Standing.WAITING and t.gpus and t.finish_s() > now_s+ 25]
        at = min(grows, default=float("inf"))
        return [WakeAt(at, "a plan grows")] if at < float("inf") else []

    def move_cost(self, job_id: str) -> float:
        track = self.tracks[job_id]
        cost = super().move_cost(job_id)
        if track.plan and track.deadline_s - track.plan.finish_s < self.overheads.move_s(len(track.gpus)):
            return 1e9 + cost
        return cost
