"""A job as its user gave it: no number of GPUs, but a number of iterations and a deadline."""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.scheduler.curves import Curve


@dataclass(frozen=True)
class Job:
    """What the scheduler is told of a job. Never changes; what has been done of it is kept elsewhere.

    curve: only sizes that the job may have. deadline_s: None for best effort.
    requested_gpus: what a user of a scheduler without elasticity would ask for; only such policies read it.
    cost_cap_gpu_s: the job may use no more GPU-seconds than that.
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

    @property
    def is_best_effort(self) -> bool:
        """Nothing is promised to it."""
        return self.deadline_s is None
