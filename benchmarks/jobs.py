"""Real jobs, started as users start them, and the timelines that their workers write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from elasticflow.cli.connection import Connection, status_of
from elasticflow.cluster.presence import wait_until_over
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import LiveStatus
from elasticflow.wire.messages import StatusRequest

PROGRAM = Path(__file__).parent / "programs" / "mlp.py"
TCP = {"shared_memory": False}
"""Settings with which workers and servers on one host exchange arrays as those on two do."""
APART = {"overlap": False}
"""Settings with which a worker pushes once it has computed, so that a timeline shows both."""


class Workload(Protocol):
    """What a job trains, see ``benchmarks.cases``."""

    @property
    def batch_size(self) -> int: ...
    @property
    def slices(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def environment(self) -> dict[str, str]: ...


class Interval(NamedTuple):
    """What a worker did from one moment of the monotonic clock until another, in seconds."""

    what: str
    tick: int
    since_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        return self.until_s - self.since_s


def wait_until(
    run: RunDir, what: Callable[[LiveStatus], object], command: subprocess.Popen[str] | None = None
) -> LiveStatus:
    """A run's first status for which ``what`` is true. command: what begins it, where that is known.

    Raises RunError if it ends before, or the command has refused it.
    """
    while not run.address.exists():
        if command is not None and command.poll() is not None:
            raise RunError(command.communicate()[0])
        time.sleep(0.02)  # nothing to wait on before there is a master
    news = -1
    with Connection(run) as connection:
        while True:
            status = status_of(connection.ask(StatusRequest(newer_than=news), timeout_s=120))
            assert status is not None
            if what(status):
                return status
            if status.state not in ("starting", "running"):
                raise RunError(str(status.events))
            news = status.news or 0


class Job:
    """A run with timelines in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        case: Workload,
        *options: object,
        steps: int | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self.run = RunDir(folder)
        self.case = case
        epochs = max(1, (steps or case.steps) // 8)
        command: list[object] = [
            sys.executable, "-m", "elasticflow.cli", "train", program, "--run-dir", folder, "--timeline",
            "--batch-size", case.batch_size, "--slices", case.slices, "--epochs", epochs, *options,
        ]  # fmt: skip
        self.output = ""
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **case.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, verb: str, *words: object) -> None:
        """Runs ``elasticflow VERB RUN WORDS``, which must succeed."""
        command = [sys.executable, "-m", "elasticflow.cli", verb, str(self.run.path), *map(str, words)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def wait(self) -> str:
        self.output, _ = self.process.communicate()
        if self.process.returncode not in (0, 3):
            raise RuntimeError(self.output)
        return self.output

    def wait_until(self, ready: int, step: int = 0) -> LiveStatus:
        """Until so many workers are ready and a step is reached; returns the status."""
        return self.wait_for(
            lambda status: [w.state for w in status.workers] == ["ready"] * ready and status.step >= step
        )

    def wait_for(self, what: Callable[[LiveStatus], object]) -> LiveStatus:
        """See ``wait_until``."""
        return wait_until(self.run, what, self.process)

    def only_timeline(self) -> list[Interval]:
        """Of the one worker. Raises RuntimeError with what the run told if there was another one."""
        timelines = self.timelines()
        if len(timelines) != 1:
            raise RuntimeError(f"timelines of {sorted(timelines)}, and not of one worker:\n{self.output}")
        return next(iter(timelines.values()))

    def timelines(self) -> dict[str, list[Interval]]:
        """By worker."""
        found = {}
        for path in sorted((self.run.path / "timelines").glob("*.jsonl")):
            lines = [line for line in path.read_text().splitlines() if line.endswith("]")]
            found[path.stem] = [Interval(*json.loads(line)) for line in lines]
        return found


@contextmanager
def job(
    case: Workload,
    *options: object,
    steps: int | None = None,
    program: Path = PROGRAM,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Job]:
    """A job, which is ended if it has not ended by then. settings: those that are no options of ``train``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.yaml"
        file.write_text(json.dumps({"client_gone": "stop", **(settings or {})}), encoding="utf-8")
        run = Path(folder) / "run"
        one = Job(run, case, "--config", file, *options, steps=steps, program=program)
        try:
            yield one
        finally:
            if one.process.poll() is None:
                one.process.terminate()
                one.process.communicate()
                wait_until_over(RunDir(run))  # nobody is to be in the way of what is measured next


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


def exchange_seconds(timelines: Mapping[str, list[Interval]]) -> dict[int, float]:
    """Seconds by tick from where the first worker had computed until the last had the next version.

    That is push, update and pull, and with several workers also what the last computes longer than the first.
    """
    computed: dict[int, float] = {}
    had: dict[int, float] = {}
    for timeline in timelines.values():
        for each in timeline:
            if each.what == "computing":
                computed[each.tick] = min(each.until_s, computed.get(each.tick, each.until_s))
            elif each.what == "waiting":
                had[each.tick] = max(each.until_s, had.get(each.tick, each.until_s))
    return {tick: had[tick] - computed[tick] for tick in sorted(computed.keys() & had.keys())}
