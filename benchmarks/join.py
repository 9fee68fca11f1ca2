"""A worker joins: when it has its first gradient, and how long the others stand idle for it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.cases import MIDDLE
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import job, waiting_by_tick

ROUNDS = 3
COMMAND = "python -m benchmarks join"


def _join() -> tuple[float, float]:
    """Seconds from the request to the newcomer's first gradient; most idle seconds of another in a step."""
    with job(MIDDLE, "--workers", 1, "--servers", 1, steps=2 * MIDDLE.steps) as one:
        one.wait_until(1, step=MIDDLE.steps // 2)
        subprocess.run([sys.executable, "-m", "elasticflow.cli", "scale", str(one.run.path), "2"], check=True)
        asked_s = time.monotonic()
        one.wait_until(2)
        one.wait()
        timelines = one.timelines()
        first = next(each for each in timelines["worker-2"] if each.what == "computing")
        waits = waiting_by_tick(timelines["worker-1"])
        usual = median([seconds for tick, seconds in waits.items() if tick < first.tick - 5])
        around = [t for t in waits if first.tick - 5 <= t <= first.tick + 5]
        return first.until_s - asked_s, max(waits[tick] for tick in around) - usual


def run() -> Iterator[Figure]:
    """Several times, one worker becomes two."""
    joins = [_join() for _ in range(ROUNDS)]
    first_s = median([first for first, _ in joins])
    idle_ms = 1000 * median([idle for _, idle in joins])
    yield figure(
        "from 'scale' to the newcomer's first gradient", first_s, "s", 0.1, COMMAND, "reference: 0.1 s"
    )
    yield figure(
        "others idle around a join, most in a step", idle_ms, "ms", 50.0, COMMAND, "reference: 50 ms"
    )
