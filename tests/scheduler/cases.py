"""Small clusters and jobs, and a simulation that is always checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from elasticflow.scheduler.checker import faults
from elasticflow.scheduler.cluster import ClusterShape, shape_of
from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.fairness import Quotas
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.schedule import JobSchedule, Outcome
from elasticflow.scheduler.simulator import simulate
from elasticflow.scheduler.traces import find_profiles, read_trace
from elasticflow.scheduler.worlds import EXACT, World

FREE = Overheads(same_s=0.0, base_s=0.0, step_s=0.0, failure_s=0.0)
DIMINISHING = curve({1: 1.0, 2: 1.5, 4: 2.0})
UNEVEN = curve({1: 1.0, 2: 0.5, 4: 1.6})
STEEP = curve({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0})
FLAT = curve({1: 3.0, 2: 2.9})
DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "scheduler"


def job(
    name: str,
    iterations: float,
    deadline_s: float | None,
    submit_s: float = 0.0,
    of: Curve = DIMINISHING,
    **more: object,
) -> Job:
    """A job with a curve of its own sizes."""
    return Job(name, of, iterations, submit_s, deadline_s, **more)  # type: ignore[arg-type]


def play(
    jobs: Sequence[Job],
    num_gpus: int = 4,
    name: str = "elastic",
    overheads: Overheads = FREE,
    world: World = EXACT,
    quotas: Quotas | None = None,
    gpus_per_node: int = 4,
) -> JobSchedule:
    """Simulates, and checks the schedule and what the policy believes at the end."""
    shape: ClusterShape = shape_of(num_gpus, gpus_per_node)
    made = policy(name, shape, overheads, quotas)
    schedule = simulate(made, jobs, world)
    made.check_invariants()
    rates = {}
    for one in jobs:
        true = world.true_curve(one)
        rates[one.job_id] = dict(zip(true.sizes, true.rates, strict=True))
    assert faults(schedule, jobs, overheads, rates) == []
    return schedule


def ends(schedule: JobSchedule) -> dict[str, Outcome]:
    """Outcomes by job."""
    return {one.job_id: one for one in schedule.outcomes}


def ratio(schedule: JobSchedule) -> float:
    """The deadline satisfactory ratio."""
    return sum(one.in_time for one in schedule.outcomes) / max(len(schedule.outcomes), 1)


def trace(name: str, most: int | None = None) -> Sequence[Job]:
    """The first jobs of a trace."""
    path = DATA / "traces" / f"{name}.csv"
    return read_trace(path, find_profiles(path))[:most]


CURVES = (DIMINISHING, UNEVEN, STEEP, FLAT, curve({1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0, 16: 7.0}))


@st.composite
def crowds(draw: st.DrawFn, most: int = 12) -> list[Job]:
    """Some jobs that may compete: windows from half of what one GPU takes to four times that."""
    made = []
    for number in range(draw(st.integers(1, most))):
        shape = draw(st.sampled_from(CURVES))
        seconds = draw(st.integers(60, 3000))
        submit_s = float(draw(st.integers(0, 3000)))
        window_s = seconds * draw(st.sampled_from((0.5, 0.8, 1.0, 1.5, 2.0, 4.0)))
        has_deadline = draw(st.integers(0, 5)) > 0
        made.append(
            job(
                f"j{number}",
                seconds * shape.rate(1),
                submit_s + window_s if has_deadline else None,
                submit_s,
                shape,
                requested_gpus=draw(st.sampled_from((1, 2, 4))),
                user=draw(st.sampled_from(("ada", "bob"))),
            )
        )
    return made
