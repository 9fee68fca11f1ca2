"""What a step costs the server and the master, in CPU, by the number of workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.dense import PROGRAM, Flat
from benchmarks.jobs import TCP, Interval, Job, job

SMALL = Flat("10 KB", 1, 2_500, 10**6)
SETTLE_S, WATCH_S = 1.0, 4.0


class Watched(NamedTuple):
    """How many seconds of CPU some processes used between two moments of the monotonic clock."""

    workers: int
    since_s: float
    until_s: float
    cpu_s: dict[str, float]


class Costs(NamedTuple):
    """Milliseconds a step: on the clock, and of CPU by process."""

    step_ms: float
    cpu_ms: dict[str, float]


def costs(numbers: Sequence[int]) -> list[Costs]:
    """Of one job that grows, and is watched for a while with each of these numbers of workers."""
    case = SMALL._replace(slices=max(numbers))
    members = ("--workers", 1, "--servers", 1, "--checkpoint-every", "24h")
    with job(case, *members, program=PROGRAM, settings=TCP) as one:
        one.wait_until(1)
        watched = [_watch(one, workers) for workers in numbers]
        _ask(one, "stop")
        one.wait()
        timeline = one.timelines()["worker-1"]
    return [_costs(each, timeline) for each in watched]


def _ask(one: Job, verb: str, *words: object) -> None:
    command = [sys.executable, "-m", "elasticflow.cli", verb, str(one.run.path), *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _watch(one: Job, workers: int) -> Watched:
    """Scales to so many workers and, once they take part, looks at the processes twice."""
    _ask(one, "scale", workers)
    status = one.wait_until(workers)
    server = next(each for each in status["servers"] if not each["standby"])  # type: ignore[attr-defined]
    pids = {"server": server["pid"], "master": status["master"]["pid"]}  # type: ignore[index]
    time.sleep(SETTLE_S)
    before, since_s = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(WATCH_S)
    after, until_s = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    return Watched(workers, since_s, until_s, {name: after[name] - before[name] for name in pids})


def _cpu_s(pid: int) -> float:
    """Seconds that all threads of a process have computed, for themselves and in the kernel; see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _costs(watched: Watched, timeline: Sequence[Interval]) -> Costs:
    ticks = {each.tick for each in timeline if watched.since_s <= each.since_s < watched.until_s}
    step_ms = 1000 * (watched.until_s - watched.since_s) / len(ticks)
    return Costs(step_ms, {name: 1000 * cpu_s / len(ticks) for name, cpu_s in watched.cpu_s.items()})
