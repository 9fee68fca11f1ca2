"""Decision times of a scheduler that has very many jobs at once, made of those of the traces."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from elasticflow.scheduler.cluster import ClusterShape, shape_of
from elasticflow.scheduler.events import ArrivalEvent
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import published
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.schedule import DecisionTime, JobSchedule
from elasticflow.scheduler.traces import find_profiles, read_trace
from elasticflow.scheduler.tracks import Standing

TRACE = Path(__file__).parent / "data" / "scheduler" / "traces" / "cluster05.csv"
NUM_DECISIONS = 60
BATCH = 250
"""The crowd comes in parts so large, a minute apart."""
FITTING, OVERLOADED = 4, 8
"""With two GPUs a job, almost all fit if each is so long, and hundreds do not."""


@dataclass(frozen=True)
class Crowd:
    """num_active: jobs under way at the end. num_waiting: of them, without room for their deadlines.

    Only decisions on single arrivals count.
    """

    num_gpus: int
    num_active: int
    num_waiting: int
    times: tuple[DecisionTime, ...]
    shape: ClusterShape

    @property
    def num_decisions(self) -> int:
        return len(self.times)

    @property
    def median_s(self) -> float:
        return statistics.median(one.took_s for one in self.times)

    @property
    def longest_s(self) -> float:
        return max(one.took_s for one in self.times)

    @property
    def schedule(self) -> JobSchedule:
        """With nothing but decision times, for a picture of them."""
        return JobSchedule("elastic", self.shape, (), (), (), self.times)


def crowd(num_jobs: int, num_gpus: int, name: str, length: int = FITTING) -> Crowd:
    """So many jobs, all at once under way; then single ones arrive, and each decision is timed.

    length: of a job, as a multiple of that in the trace.
    """
    shape = shape_of(-(-num_gpus // 8) * 8)
    scheduler = policy(name, shape, published(shape.num_gpus))
    jobs = _jobs(num_jobs + NUM_DECISIONS, length)
    now_s, times = 0.0, []
    for first in range(0, num_jobs, BATCH):
        part = jobs[first : min(first + BATCH, num_jobs)]
        scheduler.handle([ArrivalEvent(_at(job, now_s)) for job in part], now_s)
        now_s += 60.0
    for job in jobs[num_jobs:]:
        now_s += 10.0
        started = time.perf_counter()
        scheduler.handle([ArrivalEvent(_at(job, now_s))], now_s)
        took_s = time.perf_counter() - started
        times.append(DecisionTime(now_s, took_s, len(scheduler.tracks)))
    scheduler.check_invariants()
    num_waiting = sum(track.standing is Standing.WAITING for track in scheduler.tracks.values())
    return Crowd(shape.num_gpus, len(scheduler.tracks), num_waiting, tuple(times), shape)


def _jobs(count: int, length: int) -> list[Job]:
    """Drawn from a trace, but longer, and each with time enough if it were alone."""
    base, chance = read_trace(TRACE, find_profiles(TRACE)), random.Random(1)
    drawn = (chance.choice(base) for _ in range(count))
    return [
        replace(job, job_id=f"job-{number}", iterations=length * job.iterations)
        for number, job in enumerate(drawn)
    ]


def _at(job: Job, now_s: float) -> Job:
    assert job.deadline_s is not None
    window_s = 3 * max(job.deadline_s - job.submit_s, 20_000.0)
    return replace(job, submit_s=now_s, deadline_s=now_s + window_s)
