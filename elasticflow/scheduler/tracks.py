"""What is known of a job that is not over: what is left of it, what it has, what it was promised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.ladder import Ladder
from elasticflow.scheduler.placement import Gpus
from elasticflow.scheduler.shares import Need, SharePlan


class Standing(Enum):
    """What a job may count on."""

    PROMISED = "promised"
    """Its deadline."""
    WAITING = "waiting"
    """Nothing yet: it may be promised its deadline later."""
    BEST_EFFORT = "best effort"
    """Nothing: it has no deadline."""


@dataclass
class Track:
    """A job under way. ready_s: until then a change of its GPUs keeps it from iterating."""

    job: Job
    ladder: Ladder
    remaining: float
    updated_s: float
    standing: Standing
    gpus: Gpus = ()
    last_gpus: frozenset[int] = frozenset()
    ready_s: float = 0.0
    gpu_seconds: float = 0.0
    plan: SharePlan | None = None
    at_risk: bool = False
    reason: str = ""

    @property
    def rung(self) -> int:
        """Of the GPUs it has."""
        return self.ladder.rung(len(self.gpus))

    @property
    def rate(self) -> float:
        """Iterations a second while it iterates."""
        return float(self.ladder.rates[self.rung])

    def advance(self, now_s: float) -> None:
        """Counts the iterations that it should have done meanwhile."""
        self.gpu_seconds += len(self.gpus) * (now_s - self.updated_s)
        busy_s = now_s - max(self.updated_s, self.ready_s)
        if busy_s > 0:
            self.remaining = max(self.remaining - busy_s * self.rate, 0.0)
        self.updated_s = now_s

    def need(self, deadline_s: float) -> Need:
        """What is left of it, for planning."""
        lost_s = max(self.ready_s - self.updated_s, 0.0)
        return Need(self.ladder, self.remaining, deadline_s, self.rung, lost_s)

    def finish_s(self) -> float:
        """When it is done if nothing changes."""
        if not self.gpus:
            return float("inf")
        return max(self.ready_s, self.updated_s) + self.remaining / self.rate

    @property
    def deadline_s(self) -> float:
        """Infinite for a best-effort job."""
        return float("inf") if self.job.deadline_s is None else self.job.deadline_s
