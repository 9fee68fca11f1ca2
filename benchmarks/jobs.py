"""Real jobs, started as users start them, and the timelines that their workers write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import Case
from elasticflow.cli.connection import Connection
from elasticflow.errors import RunError
from elasticflow.messages import StatusRequest
from elasticflow.run_dir import RunDir

PROGRAM = Path(__file__).parent / "programs" / "mlp.py"


class Interval(NamedTuple):
    """What a worker did from one moment of the monotonic clock until another, in seconds."""

    what: str
    tick: int
    since_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        return self.until_s - self.since_s


def wait_until(run: RunDir, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """A run's first status for which ``what`` is true. Raises RunError if it ends before."""
    while not run.address.exists():
        time.sleep(0.02)  # nothing to wait on before there is a master
    news = -1
    with Connection(run) as connection:
        while True:
            status = connection.ask(StatusRequest(newer_than=news), timeout_s=120).status
            assert status is not None
            if what(status):
                return status
            if status["state"] not in ("starting", "running"):
                raise RunError(str(status["events"]))
            news = status["news"]


class Job:
    """A run with timelines in a folder of its own."""

    def __init__(self, folder: Path, case: Case, *options: object, steps: int | None = None) -> None:
        self.run = RunDir(folder)
        self.case = case
        epochs = max(1, (steps or case.steps) // 8)
        command: list[object] = [
            sys.executable, "-m", "elasticflow.cli", "train", PROGRAM, "--run-dir", folder, "--timeline",
            "--batch-size", case.batch_size, "--slices", case.slices, "--epochs", epochs, *options,
        ]  # fmt: skip
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **case.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self) -> str:
        output, _ = self.process.communicate()
        if self.process.returncode not in (0, 3):
            raise RuntimeError(output)
        return output

    def wait_until(self, ready: object, step: int = 0) -> dict[str, object]:
        """Until so many workers are ready and a step is reached; returns the status."""
        while not self.run.address.exists():
            time.sleep(0.005)
        news = -1
        with Connection(self.run) as connection:
            while True:
                status = connection.ask(StatusRequest(newer_than=news), timeout_s=120).status
                assert status is not None
                states = [worker["state"] for worker in status["workers"]]
                if states == ["ready"] * int(str(ready)) and status["step"] >= step:
                    return status
                news = status["news"]

    def timelines(self) -> dict[str, list[Interval]]:
        """By worker."""
        found = {}
        for path in sorted((self.run.path / "timelines").glob("*.jsonl")):
            lines = [line for line in path.read_text().splitlines() if line.endswith("]")]
            found[path.stem] = [Interval(*json.loads(line)) for line in lines]
        return found


@contextmanager
def job(case: Case, *options: object, steps: int | None = None) -> Iterator[Job]:
    """A job, which is ended if it has not ended by then."""
    with tempfile.TemporaryDirectory() as folder:
        one = Job(Path(folder) / "run", case, *options, steps=steps)
        try:
            yield one
        finally:
            if one.process.poll() is None:
                one.process.terminate()
                one.process.communicate()


def step_seconds(timeline: list[Interval]) -> list[float]:
    """Seconds from the beginning of each tick to that of the next, as one worker saw them."""
    begins: dict[int, float] = {}
    for interval in timeline:
        begins.setdefault(interval.tick, interval.since_s)
    ticks = sorted(begins)
    return [begins[b] - begins[a] for a, b in zip(ticks, ticks[1:], strict=False) if b == a + 1]


def waiting_by_tick(timeline: list[Interval]) -> dict[int, float]:
    """Seconds that a worker waited in each tick."""
    sums: dict[int, float] = defaultdict(float)
    for interval in timeline:
        if interval.what == "waiting":
            sums[interval.tick] += interval.seconds
    return sums
