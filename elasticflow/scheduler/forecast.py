"""A policy's plans as they stand: who gets how many GPUs until when, beside what is promised. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from elasticflow.scheduler.tracks import Track

LONGEST = 4.0
"""A picture ends after so many times the longest plan; a deadline that is later is only named."""
LEAST_S = 10.0


@dataclass(frozen=True)
class PlannedShare:
    """So many GPUs from the end of the share before until ``until_s``."""

    until_s: float
    num_gpus: int


@dataclass(frozen=True)
class PlannedJob:
    """shares: from now on. is_firm: they are its plan; else what it has, and as long as it would take so."""

    name: str
    standing: str
    num_gpus: int
    shares: tuple[PlannedShare, ...]
    deadline_s: float | None
    is_firm: bool

    @property
    def end_s(self) -> float | None:
        """When it is done; None: nobody knows."""
        return self.shares[-1].until_s if self.shares else None

    def at(self, time_s: float) -> int:
        """GPUs at that time, which is not before now."""
        return next((share.num_gpus for share in self.shares if time_s < share.until_s), 0)


@dataclass(frozen=True)
class Forecast:
    """All plans of a cluster of so many GPUs, as of now."""

    now_s: float
    num_gpus: int
    jobs: tuple[PlannedJob, ...]

    @property
    def end_s(self) -> float:
        """Where a picture of it ends: all plans are in it, and deadlines that are not far beyond."""
        ends_s = [job.end_s for job in self.jobs if job.end_s is not None]
        longest_s = max([LEAST_S, *(end_s - self.now_s for end_s in ends_s)])
        due_s = [job.deadline_s - self.now_s for job in self.jobs if job.deadline_s is not None]
        return self.now_s + max([longest_s, *(one for one in due_s if one <= LONGEST * longest_s)]) * 1.02

    def taken(self, time_s: float) -> int:
        """GPUs of all plans at that time; what jobs without a plan have is nobody's."""
        return sum(job.at(time_s) for job in self.jobs if job.is_firm)


def shares_of(track: Track, now_s: float) -> tuple[tuple[PlannedShare, ...], bool]:
    """A job's, and whether they are its plan; none, if it has neither a plan nor GPUs."""
    plan = track.plan
    if plan is None:
        finish_s = track.finish_s()
        return ((PlannedShare(finish_s, len(track.gpus)),) if now_s < finish_s < inf else ()), False
    changes_s = plan.changes_s()
    firsts_s = [now_s, *changes_s.tolist()[:-1]]
    sizes = plan.shares_at(np.array(firsts_s)).tolist()
    shares = [
        PlannedShare(float(until_s), size)
        for until_s, size in zip(changes_s.tolist(), sizes, strict=True)
        if until_s > now_s
    ]
    return tuple(shares), True
