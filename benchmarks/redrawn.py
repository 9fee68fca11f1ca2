"""Deadlines drawn anew for the traces: ours, EDF with admission and the bound on the same draws.

    python -m benchmarks.redrawn              the table
    python -m benchmarks.redrawn 5 195job     the first five draws of the rows of a trace, each on a line
    python -m benchmarks.redrawn 5 195job 20  five draws from the twentieth on

deadline = submission + U[.5, 1.5] of the trace's duration of the job. The bound is that of ``fluid``, each
job charged one start. Every schedule is checked.
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.figures import Figure, figure
from benchmarks.fluid import demands_of, fluid_bound
from benchmarks.scheduler import COMMAND, TABLE, TRACES, Row, play
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import published

DRAWS = 20
MUST_GAP = 0.015
ROWS = TABLE[:6]


@dataclass(frozen=True)
class Draw:
    """What became of one draw: deadline jobs, those that could be met at most, and that were."""

    num_jobs: int
    bound: int
    ours: int
    edf: int
    late: int

    @property
    def gap(self) -> float:
        """What is missing to the bound, as a part of the jobs."""
        return (self.bound - self.ours) / self.num_jobs


@dataclass(frozen=True)
class Redrawn(Row):
    """A row with other deadlines."""

    seed: int = 0

    def jobs(self) -> Sequence[Job]:
        """Of the trace, as due as the seed says."""
        with (TRACES / f"{self.trace}.csv").open(newline="", encoding="utf-8-sig") as file:
            lasts_s = {row["job_id"]: float(row["duration"]) for row in csv.DictReader(file)}
        chance = random.Random(self.seed)
        return [
            replace(job, deadline_s=job.submit_s + chance.uniform(0.5, 1.5) * lasts_s[job.job_id])
            for job in super().jobs()
        ]


def draw(row: Row, seed: int) -> Draw:
    """Plays one."""
    redrawn = Redrawn(row.trace, row.num_gpus, row.gpus_per_node, 0.0, 0.0, 0.0, seed)
    jobs = redrawn.jobs()
    bound = fluid_bound(demands_of(jobs, row.num_gpus, published(row.num_gpus)), row.num_gpus)
    ours, edf = play(redrawn, "elastic"), play(redrawn, "edf-admission")
    met, met_by_edf = (round(one.ratio * len(jobs)) for one in (ours, edf))
    return Draw(len(jobs), bound.whole_jobs, met, met_by_edf, ours.late)


def line(row: Row, draws: Sequence[Draw]) -> str:
    """Of the table."""
    gap = sum(one.gap for one in draws) / len(draws)
    bound, ours, edf = (
        sum(getattr(one, name) / one.num_jobs for one in draws) / len(draws)
        for name in ("bound", "ours", "edf")
    )
    below = sum(one.ours < one.edf for one in draws)
    late = sum(one.late for one in draws)
    worst = max(one.gap for one in draws)
    return (
        f"| {row.name} | {bound:.4f} | **{ours:.4f}** | {gap:.4f} | {worst:.4f} | {edf:.4f} "
        f"| {below} of {len(draws)} | {late} |"
    )


def figures_of_draws(num_draws: int = DRAWS) -> Iterator[Figure]:
    """How far from the bound each row is in the mean, and how often EDF with admission meets more."""
    gaps = []
    for row in ROWS:
        draws = [draw(row, seed) for seed in range(num_draws)]
        gaps += [one.gap for one in draws]
        _, bound, ours, _, worst, edf, below, late = (
            cell.strip(" *") for cell in line(row, draws).split("|")[1:9]
        )
        note = (
            f"{num_draws} draws: met {ours}, bound {bound}, EDF with admission {edf}; largest gap {worst}; "
            f"below EDF with admission {below}; late {late}"
        )
        name = f"{row.name}: gap to the bound, deadlines drawn anew"
        yield figure(name, sum(gaps[-num_draws:]) / num_draws, "", MUST_GAP, COMMAND, note)
    yield figure("all draws: gap to the bound", sum(gaps) / len(gaps), "", MUST_GAP, COMMAND, "mean")


def table(num_draws: int = DRAWS, trace: str = "", first: int = 0) -> Iterator[str]:
    """As text; of rows of one trace alone, a line a draw too."""
    yield "| trace | bound | ours | mean gap | largest | EDF with admission | ours below it | late |"
    yield "|---|---|---|---|---|---|---|---|"
    gaps = []
    for row in ROWS:
        if trace and row.trace != trace:
            continue
        draws = [draw(row, seed) for seed in range(first, first + num_draws)]
        gaps += [one.gap for one in draws]
        yield line(row, draws)
        if trace:
            yield from (f"  {seed}: {one}" for seed, one in enumerate(draws, first))
    yield f"mean gap {sum(gaps) / len(gaps):.4f}"


if __name__ == "__main__":
    for text in table(*(kind(one) for kind, one in zip((int, str, int), sys.argv[1:], strict=False))):
        print(text, flush=True)
