"""The record of a simulation: what ran where and when, and how each job ended.

It is written by the simulator, and read by the checker, the metrics and the plots.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.scheduler.cluster import ClusterShape


@dataclass(frozen=True)
class Segment:
    """A job on the same GPUs from ``start_s`` to ``end_s``.

    gpus: numbers from 0; GPU g is on node ``g // gpus_per_node``. lost_s: of this time, at its start, the
    change took so long and no iteration was done. iterations: what was done.
    """

    job_id: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    lost_s: float
    iterations: float


@dataclass(frozen=True)
class Outage:
    """A node was down from ``start_s`` to ``end_s``."""

    node: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Outcome:
    """How a job ended. by_s: what was promised instead of its deadline, which was soft.

    admitted_s: when its deadline was promised, None if never. finished_s: None if it did not finish.
    reason: why it was rejected or late, for a person.
    """

    job_id: str
    submit_s: float
    deadline_s: float | None
    admitted_s: float | None
    finished_s: float | None
    reason: str = ""
    by_s: float | None = None

    @property
    def in_time(self) -> bool:
        """Admitted, and finished by what was promised."""
        if self.deadline_s is None or self.admitted_s is None or self.finished_s is None:
            return False
        return self.finished_s <= (self.deadline_s if self.by_s is None else self.by_s) + 1e-6

    @property
    def late(self) -> bool:
        """Admitted, and not finished by its deadline: a broken promise."""
        return self.deadline_s is not None and self.admitted_s is not None and not self.in_time


@dataclass(frozen=True)
class DecisionTime:
    """One call of the scheduler: when in the simulation, how long it took, how many jobs were active."""

    at_s: float
    took_s: float
    num_active: int


@dataclass(frozen=True)
class JobSchedule:
    """Everything that a simulation did."""

    policy: str
    shape: ClusterShape
    segments: tuple[Segment, ...]
    outcomes: tuple[Outcome, ...]
    outages: tuple[Outage, ...] = ()
    decision_times: tuple[DecisionTime, ...] = ()
    num_resizes: int = 0
    num_migrations: int = 0
