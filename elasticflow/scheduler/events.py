"""What the scheduler is told. Every event is a plain fact; the time is passed beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.scheduler.capacity import Capacity
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.jobs import Job


@dataclass(frozen=True)
class ArrivalEvent:
    """A user submitted a job."""

    job: Job


@dataclass(frozen=True)
class CompletionEvent:
    """A job has done its last iteration, or was cancelled."""

    job_id: str


@dataclass(frozen=True)
class NodeLostEvent:
    """A node is gone, with the GPUs of the jobs on it."""

    node: int


@dataclass(frozen=True)
class NodeBackEvent:
    """A node is there again."""

    node: int


@dataclass(frozen=True)
class ProgressEvent:
    """How many iterations are left, by job: as the jobs themselves count."""

    remaining: Mapping[str, float]


@dataclass(frozen=True)
class ProfileCorrectedEvent:
    """A job's speed was measured: iterations a second on so many GPUs.

    own: only this job is so fast (a slow GPU, say); else every job of the same model and batch is.
    """

    job_id: str
    num_gpus: int
    rate: float
    own: bool = False


@dataclass(frozen=True)
class ProfileReplacedEvent:
    """What was guessed of a job follows from other measurements now. measured: its rates that were."""

    job_id: str
    curve: Curve
    measured: Mapping[int, float]


@dataclass(frozen=True)
class CapacityEvent:
    """So many GPUs may be used, now and as far as that is known ahead."""

    capacity: Capacity


@dataclass(frozen=True)
class TickEvent:
    """Time has passed; the scheduler asked for it."""


Event = (
    ArrivalEvent
    | CompletionEvent
    | NodeLostEvent
    | NodeBackEvent
    | ProgressEvent
    | ProfileCorrectedEvent
    | ProfileReplacedEvent
    | CapacityEvent
    | TickEvent
)
