"""Records a second of the asynchronous mode over the synchronous one, with one of four workers slower."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import PROGRAM, job

ROUNDS = 3
WORKERS, SLOWNESS = 4, 3
BATCH = 64
"""Records of an update."""
RUN_S = 16.0
"""So long one worker alone would compute."""
COMMAND = "python -m benchmarks async"


class _Case(NamedTuple):
    """A batch takes ``batch_s``. lock: whoever has it is slow."""

    batch_s: float
    lock: str
    batch_size: int = BATCH
    slices: int = 0
    steps: int = 8

    @property
    def batches(self) -> int:
        """Of a run."""
        return int(RUN_S / self.batch_s)

    def environment(self) -> dict[str, str]:
        bench = {
            "record_s": self.batch_s / BATCH,
            "records": BATCH * self.batches,
            "slowness": SLOWNESS,
            "lock": self.lock,
        }
        return {"BENCH": json.dumps(bench)}


def _records_per_s(batch_s: float, staleness: int | None) -> float:
    """Once all workers take part. staleness: None for the synchronous mode."""
    mode = () if staleness is None else ("--mode", "async", "--staleness", staleness)
    per_step = 1 if staleness is None else staleness + 1
    program = PROGRAM.with_name("waiting.py")
    with tempfile.TemporaryDirectory() as folder:
        case = _Case(batch_s, str(Path(folder, "lock")))
        with job(case, *mode, "--workers", WORKERS, "--servers", 1, program=program) as one:
            steps = case.batches // per_step
            begun = one.wait_until(WORKERS, steps // 4)
            since_s = time.monotonic()
            ended = one.wait_until(WORKERS, steps * 7 // 8)
            seconds = time.monotonic() - since_s
    return (ended.records_covered - begun.records_covered) / seconds


def run() -> Iterator[Figure]:
    """Batches of two lengths, each in turns in both modes."""
    for batch_s in (0.064, 0.008):
        rates: dict[int | None, list[float]] = {None: [], 7: [], 31: []}
        for _ in range(ROUNDS):
            for staleness, found in rates.items():
                found.append(_records_per_s(batch_s, staleness))
        exact = median(rates.pop(None))
        most = (WORKERS - 1 + 1 / SLOWNESS) * BATCH / batch_s
        for staleness, found in rates.items():
            rate = median(found)
            name = f"batch of {1000 * batch_s:.0f} ms, staleness {staleness}: async / sync"
            note = f"of what the workers could compute: async {rate / most:.2f}, sync {exact / most:.2f}"
            yield figure(name, rate, "/s", exact, COMMAND, note)
