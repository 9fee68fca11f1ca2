"""What the scheduler decides. Every decision says why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Admitted:
    """The deadline is promised; of a soft one, ``by_s``, which is later. None: the deadline itself."""

    job_id: str
    reason: str
    by_s: float | None = None


@dataclass(frozen=True)
class Deferred:
    """No promise yet; it may come until ``until_s``. Meanwhile the job runs on what nobody else needs."""

    job_id: str
    reason: str
    until_s: float


@dataclass(frozen=True)
class Rejected:
    """There will be no promise. earliest_deadline_s: what could be promised instead; None if nothing can."""

    job_id: str
    reason: str
    earliest_deadline_s: float | None = None


@dataclass(frozen=True)
class Placed:
    """From now on the job has these GPUs; none: it waits."""

    job_id: str
    gpus: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class WakeAt:
    """Tell the scheduler when it is that late."""

    at_s: float
    reason: str


Decision = Admitted | Deferred | Rejected | Placed | WakeAt
