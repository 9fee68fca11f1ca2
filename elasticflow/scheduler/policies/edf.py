"""Baselines: earliest deadline first, elastic and aware of each curve's knee; without and with admission."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.scheduler.decisions import Admitted, Decision, Rejected, WakeAt
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.packing import by_deadline
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.shares import SharePlan, cheapest_plan
from elasticflow.scheduler.tracks import Standing, Track


class Edf(Policy):
    """Each in the order of deadlines gets what it needs to be in time, and its knee if that is more.

    What is left goes, in the same order, to whoever it still makes faster by half of what it adds.
    """

    name = "edf"

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        for job in arrivals:
            self.follow(job, now_s, Standing.BEST_EFFORT if job.is_best_effort else Standing.PROMISED)
        return [Admitted(job.job_id, "admits all") for job in arrivals if not job.is_best_effort]

    def share(self, now_s: float) -> dict[str, int]:
        left, sizes = self.num_usable, {}
        order = by_deadline(self.tracks.values())
        can = [one for one in order if self._can_be_in_time(one)]
        for track in can + [one for one in order if one not in can]:
            size = self._fitting(track, min(left, self._wanted(track)))
            if size:
                sizes[track.job_id] = size
                left -= size
        return sizes

    def _can_be_in_time(self, track: Track) -> bool:
        return track.steady_cost() < float("inf")

    def _wanted(self, track: Track) -> int:
        """Its knee, or more if only that is in time."""
        rung = track.ladder.rung_in_time(track.remaining, track.deadline_s - track.updated_s)
        return max(track.job.curve.knee, track.ladder.sizes[rung])

    def _fitting(self, track: Track, limit: int) -> int:
        """The largest size on its ladder within the limit."""
        return track.ladder.sizes[track.ladder.rung(limit)]


class EdfAdmission(Edf):
    """Admits a job if it and all others are in time, each on the GPUs that those before it leave.

    Each is planned at the smallest size that is in time, the published way, and then run as above.
    """

    name = "edf-admission"

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        promised = [one for one in self.tracks.values() if one.standing is Standing.PROMISED]
        for job in arrivals:
            track = self.follow(job, now_s, Standing.BEST_EFFORT if job.is_best_effort else Standing.PROMISED)
            if job.is_best_effort:
                continue
            if self._all_in_time([*promised, track], now_s):
                promised.append(track)
                decisions.append(Admitted(job.job_id, "all are in time"))
            else:
                self.drop(job.job_id)
                decisions.append(Rejected(job.job_id, "somebody would be late"))
        self._all_in_time(promised, now_s)
        return decisions

    def share(self, now_s: float) -> dict[str, int]:
        """First what each needs now, then up to the knee by deadline."""
        order = by_deadline(self.tracks.values())
        sizes = {one.job_id: one.plan.size_now if one.plan else 0 for one in order}
        left = self.num_usable - sum(sizes.values())
        for track in order:
            has = sizes[track.job_id]
            size = self._fitting(track, min(left + has, max(track.job.curve.knee, has)))
            if size > has and self._may_change(track, has, size):
                sizes[track.job_id] = size
                left -= size - has
        return {job_id: size for job_id, size in sizes.items() if size}

    def wake(self, now_s: float) -> list[Decision]:
        """When a plan grows."""
        times = [one.plan.grows_s for one in self.tracks.values() if one.plan]
        later = [at_s for at_s in times if now_s < at_s < float("inf")]
        return [WakeAt(min(later), "a plan grows")] if later else []

    def move_cost(self, job_id: str) -> float:
        return super().move_cost(job_id) / max(self.tracks[job_id].slack_s, 1e-3)

    def _may_change(self, track: Track, planned: int, size: int) -> bool:
        """The deadline allows what it costs to grow, and to shrink again."""
        if len(track.gpus) == size:
            return True
        cost_s = self.overheads.resize_s(len(track.gpus), size) + self.overheads.resize_s(size, planned)
        return cost_s <= track.slack_s

    def _all_in_time(self, tracks: Sequence[Track], now_s: float) -> bool:
        timeline = self.empty_timeline(now_s)
        plans: list[tuple[Track, SharePlan | None]] = []
        for track in by_deadline(tracks):
            plan = cheapest_plan(track.need(track.deadline_s, track.ladders.expected), timeline)
            plans.append((track, plan))
            if plan is not None:
                timeline.take(plan.shares, plan.finish_s)
        if all(plan for _, plan in plans):
            for track, plan in plans:
                track.plan = plan
            return True
        return False
