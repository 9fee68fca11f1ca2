"""A job as its user gave it: no number of GPUs, but a number of iterations and a deadline."""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.values import Softness, aims_s, value_at


@dataclass(frozen=True)
class Job:
    """What the scheduler is told of a job. Never changes; what has been done of it is kept elsewhere.

    curve: only sizes that the job may have. deadline_s: None for best effort.
    requested_gpus: what a user of a scheduler without elasticity would ask for; only such policies read it.
    soft: what it is worth to be done later. cost_cap_gpu_s: the job may use no more GPU-seconds than that.
    """

    job_id: str
    curve: Curve
    iterations: float
    submit_s: float
    deadline_s: float | None
    requested_gpus: int = 1
    model: str = ""
    user: str = ""
    priority: int = 0
    cost_cap_gpu_s: float | None = None
    soft: Softness = ()

    @property
    def aims_s(self) -> list[float]:
        """Moments to be done by that are worth something, the best first; none of a best-effort job."""
        return [] if self.deadline_s is None else aims_s(self.deadline_s, self.soft)

    def value_at(self, time_s: float) -> float:
        """What it is worth to be done then, of 1; of a best-effort job always all."""
        return 1.0 if self.deadline_s is None else value_at(self.soft, time_s - self.deadline_s)

    @property
    def is_best_effort(self) -> bool:
        """Nothing is promised to it."""
        return self.deadline_s is None
