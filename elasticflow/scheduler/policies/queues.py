"""Baselines of fixed size: jobs have the GPUs that their users asked for, or none."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.scheduler.decisions import Admitted, Decision, WakeAt
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.tracks import Standing, Track


def requested_size(track: Track) -> int:
    """The size on its ladder that is next below what its user asked for; at least the smallest."""
    sizes = [size for size in track.ladder.sizes if size]
    return max((one for one in sizes if one <= track.job.requested_gpus), default=min(sizes, default=0))


class Queue(Policy):
    """Admits everybody; gives GPUs in an order, to each all or nothing."""

    blocks = False
    """Whether a job that does not fit keeps those behind it waiting."""

    def admit(self, arrivals: Sequence[Job], now_s: float) -> list[Decision]:
        for job in arrivals:
            self.follow(job, now_s, Standing.BEST_EFFORT if job.is_best_effort else Standing.PROMISED)
        return [Admitted(job.job_id, "admits all") for job in arrivals if not job.is_best_effort]

    def share(self, now_s: float) -> dict[str, int]:
        left, sizes = self.num_usable, {}
        for track in self.order(now_s):
            size = requested_size(track)
            if size <= left:
                sizes[track.job_id] = size
                left -= size
            elif self.blocks:
                break
        return sizes

    def order(self, now_s: float) -> list[Track]:
        """First come, first served."""
        return sorted(self.tracks.values(), key=lambda one: (one.job.submit_s, one.job_id))


class Fifo(Queue):
    """First come, first served; the first that does not fit is waited for."""

    name = "fifo"
    blocks = True

    def order(self, now_s: float) -> list[Track]:
        """Who runs goes on: a gang is not preempted."""
        return sorted(self.tracks.values(), key=lambda one: (not one.gpus, one.job.submit_s, one.job_id))


class Fixed(Queue):
    """First come, first served; smaller ones that fit overtake."""

    name = "fixed"

    def order(self, now_s: float) -> list[Track]:
        """Who runs goes on."""
        return sorted(self.tracks.values(), key=lambda one: (not one.gpus, one.job.submit_s, one.job_id))


class LeastAttained(Queue):
    """Like Tiresias: those with the least GPU-time so far first, in a few classes; preempts."""

    name = "las"
    LIMITS_GPU_S = (3_600.0, 36_000.0)

    def order(self, now_s: float) -> list[Track]:
        """By class, then first come."""
        return sorted(self.tracks.values(), key=lambda one: (self._class(one), one.job.submit_s, one.job_id))

    def wake(self, now_s: float) -> list[Decision]:
        """When a job falls into the next class."""
        times = [
            now_s + (limit - one.gpu_seconds) / len(one.gpus) + 1e-3
            for one in self.tracks.values()
            for limit in self.LIMITS_GPU_S
            if one.gpus and one.gpu_seconds < limit
        ]
        return [WakeAt(min(times), "a job has had its part")] if times else []

    def _class(self, track: Track) -> int:
        return sum(track.gpu_seconds >= limit for limit in self.LIMITS_GPU_S)
