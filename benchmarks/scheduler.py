"""Deadlines met on traces, beside the published system, the bound and EDF; wrong profiles; decision times.

Then the same rows with deadlines drawn anew (``redrawn``), 20 times each.

    python -m benchmarks scheduler                      all figures
    python -m benchmarks.scheduler                      only the table, as text
    python -m benchmarks.scheduler --growth FILE.png    decision times by number of jobs, as a picture

The overhead of a change of a job's GPUs is the published one. Every schedule is checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crowded import OVERLOADED, Crowd, crowd
from benchmarks.figures import Figure, figure
from elasticflow.scheduler.checker import faults
from elasticflow.scheduler.cluster import shape_of
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.metrics import metrics
from elasticflow.scheduler.overheads import published
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.schedule import JobSchedule
from elasticflow.scheduler.simulator import simulate
from elasticflow.scheduler.traces import find_profiles, read_trace
from elasticflow.scheduler.worlds import DAY_S, EXACT, World, random_outages, wrong_profiles

TRACES = Path(__file__).parent / "data" / "scheduler" / "traces"
COMMAND = "python -m benchmarks scheduler"
SEEDS = 3


@dataclass(frozen=True)
class Row:
    """A trace on a cluster. published: what the published system reached, run again. must: what to reach."""

    trace: str
    num_gpus: int
    gpus_per_node: int
    published: float
    bound: float
    must: float

    @property
    def name(self) -> str:
        return f"{self.trace} on {self.num_gpus}"

    def jobs(self) -> Sequence[Job]:
        """Of the trace."""
        path = TRACES / f"{self.trace}.csv"
        return read_trace(path, find_profiles(path))


TABLE = (
    Row("195job", 128, 8, 0.749, 0.9385, 0.915),
    Row("elasticVpollux_e", 64, 4, 0.728, 0.928, 0.85),
    Row("195job", 64, 8, 0.703, 0.892, 0.86),
    Row("195job", 32, 8, 0.605, 0.810, 0.70),
    Row("cluster06", 512, 8, 0.638, 0.851, 0.84),
    Row("cluster10", 256, 8, 0.962, 0.992, 0.985),
    Row("cluster01", 512, 8, 0.788, 0.985, 0.965),
    Row("cluster05", 512, 8, 0.788, 0.988, 0.968),
)
"""The bounds are what ``python -m benchmarks fluid`` prints."""


@dataclass(frozen=True)
class Result:
    """A policy on a row of the table."""

    ratio: float
    ratio_on_arrival: float
    admitted: int
    late: int
    decision_p99_s: float
    seconds: float


def play(row: Row, name: str, world: World = EXACT) -> Result:
    """Simulates and checks one policy. Raises AssertionError if the schedule cannot be."""
    jobs, shape, overheads = row.jobs(), shape_of(row.num_gpus, row.gpus_per_node), published(row.num_gpus)
    started = time.perf_counter()
    schedule = simulate(policy(name, shape, overheads), jobs, world)
    seconds = time.perf_counter() - started
    rates = {}
    for job in jobs:
        true = world.true_curve(job)
        rates[job.job_id] = dict(zip(true.sizes, true.rates, strict=True))
    found = faults(schedule, jobs, overheads, rates)
    assert not found, found[:3]
    return _result(schedule, seconds)


def _result(schedule: JobSchedule, seconds: float) -> Result:
    found = metrics(schedule)
    return Result(
        ratio=found["satisfactory_ratio"],
        ratio_on_arrival=found["in_time_promised_on_arrival"] / found["deadline_jobs"],
        admitted=found["admitted"],
        late=found["admitted_and_late"],
        decision_p99_s=found["decision_s"]["p99"],
        seconds=seconds,
    )


def bad_world(row: Row, seed: int) -> World:
    """Profiles off by up to 20 %, each size by itself; each node fails every 30 days, for an hour."""
    jobs, shape = row.jobs(), shape_of(row.num_gpus, row.gpus_per_node)
    return World(
        curves=wrong_profiles(jobs, 0.2, seed),
        outages=random_outages(shape, jobs, 30 * DAY_S, 3600.0, seed),
    )


def run() -> Iterator[Figure]:
    """See the module's docstring."""
    for row in TABLE:
        yield from _figures_of(row)
    for row in TABLE[:6]:
        yield _figure_of_bad_worlds(row)
    from benchmarks.redrawn import figures_of_draws  # which plays rows of this table

    yield from figures_of_draws()
    for num_jobs in (10, 100, 1000, 5000):
        yield _figure_of_crowd(crowd(num_jobs, max(2 * num_jobs, 64), "elastic"))
    yield _figure_of_crowd(crowd(5000, 10_000, "elastic", OVERLOADED))


def _figures_of(row: Row) -> Iterator[Figure]:
    ours, edf, careful = (play(row, name) for name in ("elastic", "edf", "edf-admission"))
    note = (
        f"published {row.published:.3f}, bound {row.bound:.4f}, must {row.must:.3f}, "
        f"tuned EDF {edf.ratio:.4f}, EDF with admission {careful.ratio:.4f}; "
        f"promised on arrival {ours.ratio_on_arrival:.4f}, late {ours.late} of {ours.admitted}"
    )
    yield figure(f"{row.name}: deadlines met", ours.ratio, "", row.must, COMMAND, note)
    p99_ms = 1000 * ours.decision_p99_s
    note = f"reference: the published system; {ours.seconds:.1f} s for the whole trace"
    yield figure(f"{row.name}: decisions, p99", p99_ms, "ms", 147.0, COMMAND, note)


def _figure_of_bad_worlds(row: Row) -> Figure:
    exact = play(row, "elastic").ratio
    results = [play(row, "elastic", bad_world(row, seed)) for seed in range(SEEDS)]
    late, admitted = sum(one.late for one in results), sum(one.admitted for one in results)
    note = (
        f"{SEEDS} seeds; deadlines met {', '.join(f'{one.ratio:.3f}' for one in results)}, exactly known "
        f"{exact:.3f}; late {late} of {admitted} promised"
    )
    name = f"{row.name}: late, profiles off by 20 %, nodes fail"
    return figure(name, 100 * late / admitted, "%", 0.5, COMMAND, note)


def _figure_of_crowd(found: Crowd) -> Figure:
    name = (
        f"decision, {found.num_active} jobs active on {found.num_gpus} GPUs, {found.num_waiting} do not fit"
    )
    note = f"median {1000 * found.median_s:.1f} ms of {found.num_decisions}; the longest is the figure"
    return figure(name, 1000 * found.longest_s, "ms", 1000.0, COMMAND, note)


def table() -> Iterator[str]:
    """The table as text."""
    yield (
        "| trace | published, re-run | upper bound | must reach | ours | promised on arrival | late "
        "| tuned EDF | EDF with admission |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in TABLE:
        ours, edf, careful = (play(row, name) for name in ("elastic", "edf", "edf-admission"))
        yield (
            f"| {row.name} | {row.published:.3f} | {row.bound:.4f} | {row.must:.3f} | **{ours.ratio:.4f}** "
            f"| {ours.ratio_on_arrival:.4f} | {ours.late} | {edf.ratio:.4f} | {careful.ratio:.4f} |"
        )


def growth(file: Path) -> None:
    """Draws how the time of a decision grows with the number of jobs."""
    from elasticflow.scheduler import plots

    crowds = [crowd(num_jobs, 2 * num_jobs, "elastic") for num_jobs in (50, 100, 200, 500, 1000, 2000, 5000)]
    plots.save(plots.decisions([one.schedule for one in crowds]), file)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler")
    parser.add_argument("--growth", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.growth:
        growth(arguments.growth)
        return 0
    for text in table():
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
