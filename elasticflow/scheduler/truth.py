"""The truth about one job in a simulation, which its policy learns from events alone."""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.schedule import Outcome, Segment


@dataclass
class Running:
    """A job under way. remaining: iterations left at ``since_s``. version: of its GPUs and speed."""

    job: Job
    curve: Curve
    remaining: float
    gpus: tuple[int, ...] = ()
    last_gpus: frozenset[int] = frozenset()
    since_s: float = 0.0
    ready_s: float = 0.0
    rate: float = 0.0
    version: int = 0

    def remaining_at(self, now_s: float) -> float:
        """Iterations left."""
        return max(self.remaining - self._iterating_s(now_s) * self.rate, 0.0)

    def finish_s(self) -> float:
        """When it is done if nothing changes."""
        return max(self.ready_s, self.since_s) + self.remaining / self.rate

    def stop(self, now_s: float) -> Segment | None:
        """Takes its GPUs; returns what it did on them, if it had any for a while."""
        segment = None
        if self.gpus and now_s > self.since_s:
            left = self.remaining_at(now_s)
            lost_s = max(min(self.ready_s, now_s) - self.since_s, 0.0)
            segment = Segment(self.job.job_id, self.gpus, self.since_s, now_s, lost_s, self.remaining - left)
            self.remaining = left
        self.gpus, self.rate = (), 0.0
        self.version += 1
        return segment

    def start(self, gpus: tuple[int, ...], now_s: float, ready_s: float, factor: float) -> None:
        """Gives it GPUs, on which it iterates from ``ready_s`` on."""
        self.gpus, self.last_gpus = gpus, frozenset(gpus)
        self.since_s, self.ready_s = now_s, ready_s
        self.rate = self.curve.rate(len(gpus)) * factor

    def _iterating_s(self, now_s: float) -> float:
        return max(now_s - max(self.ready_s, self.since_s), 0.0)


@dataclass
class TrueEnding:
    """What became of a job so far."""

    job: Job
    admitted_s: float | None = None
    finished_s: float | None = None
    reason: str = ""
    by_s: float | None = None

    def outcome(self) -> Outcome:
        """For the record."""
        job = self.job
        return Outcome(
            job.job_id,
            job.submit_s,
            job.deadline_s,
            self.admitted_s,
            self.finished_s,
            self.reason,
            self.by_s,
        )
