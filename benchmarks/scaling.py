"""Two workers on two cores over one, beside DistributedDataParallel over gloo with two processes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases import LARGE
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import job, step_seconds
from benchmarks.plain import steps_of

ROUNDS = 3
COMMAND = "python -m benchmarks scaling"


def _ours(workers: int) -> float:
    """Seconds of a step once all workers take part."""
    with job(LARGE, "--workers", workers, "--servers", 1, steps=2 * LARGE.steps) as one:
        one.wait()
        steps = [step_seconds(timeline)[-LARGE.steps :] for timeline in one.timelines().values()]
        return median([median(seconds) for seconds in steps])


def run() -> Iterator[Figure]:
    """In turns: one and two workers, one and two processes of DDP."""
    ours: dict[int, list[float]] = {1: [], 2: []}
    ddp: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for count in (1, 2):
            ours[count].append(_ours(count))
            ddp[count].append(median(steps_of(LARGE, "ddp", count)))
    one, two = (1000 * median(ours[count]) for count in (1, 2))
    name = f"step of {LARGE.name}"
    yield figure(
        f"{name}: one worker / two workers", one, "ms", two, COMMAND, "ratio: how many times as fast"
    )
    one, two = (1000 * median(ddp[count]) for count in (1, 2))
    yield figure(f"{name}: gloo DDP, one / two processes", one, "ms", two, COMMAND)
