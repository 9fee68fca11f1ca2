"""One worker and one server over a plain PyTorch loop that does the same slices."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases import CASES, Case
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import job, step_seconds
from benchmarks.plain import steps_of

ROUNDS = 3
COMMAND = "python -m benchmarks overhead"


def _ours(case: Case) -> list[float]:
    with job(case, "--workers", 1, "--servers", 1) as one:
        one.wait()
        timeline = one.only_timeline()
        return step_seconds(timeline)


def run() -> Iterator[Figure]:
    """For each case, in turns: the plain loop, ElasticFlow, DistributedDataParallel."""
    for case in CASES:
        loop, ours, ddp = [], [], []
        for _ in range(ROUNDS):
            loop.append(median(steps_of(case, "loop")))
            ours.append(median(_ours(case)))
            ddp.append(median(steps_of(case, "ddp")))
        plain_ms, ours_ms, ddp_ms = (1000 * median(seconds) for seconds in (loop, ours, ddp))
        note = f"costs {ours_ms - plain_ms:+.2f} ms a step"
        yield figure(f"step of {case.name}: ElasticFlow / loop", ours_ms, "ms", plain_ms, COMMAND, note)
        note = f"costs {ddp_ms - plain_ms:+.2f} ms a step"
        yield figure(f"step of {case.name}: gloo DDP / loop", ddp_ms, "ms", plain_ms, COMMAND, note)
