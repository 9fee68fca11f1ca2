"""What a step costs processes in CPU; of the server and the master, by the number of workers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.dense import PROGRAM, Flat
from benchmarks.jobs import TCP, Interval, Job, job
from elasticflow.run.telling import LiveStatus

SMALL = Flat("10 KB", 1, 2_500, 10**6)
SETTLE_S, WATCH_S = 1.0, 4.0


class Watched(NamedTuple):
    """How many seconds of CPU some processes used between two moments of the monotonic clock."""

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
        watched = [_watch_scaled(one, workers) for workers in numbers]
        one.ask("stop")
        one.wait()
        timeline = one.timelines()["worker-1"]
    return [a_step(each, timeline) for each in watched]


def _watch_scaled(one: Job, workers: int) -> Watched:
    """Scales to so many workers, and looks once they take part."""
    one.ask("scale", workers)
    status = one.wait_until(workers)
    return watch({"server": server_pid(status), "master": status.master.pid})


def server_pid(status: LiveStatus) -> int:
    """Of the first server that does not only stand by."""
    return next(each.pid for each in status.servers if not each.standby)


def watch(pids: Mapping[str, int]) -> Watched:
    """Looks at processes twice."""
    time.sleep(SETTLE_S)
    before, since_s = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(WATCH_S)
    after, until_s = {name: _cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    return Watched(since_s, until_s, {name: after[name] - before[name] for name in pids})


def _cpu_s(pid: int) -> float:
    """Seconds that all threads of a process have computed, for themselves and in the kernel; see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def a_step(watched: Watched, timeline: Sequence[Interval]) -> Costs:
    """Of what was watched, by the timeline of a worker that took part."""
    ticks = {each.tick for each in timeline if watched.since_s <= each.since_s < watched.until_s}
    step_ms = 1000 * (watched.until_s - watched.since_s) / len(ticks)
    return Costs(step_ms, {name: 1000 * cpu_s / len(ticks) for name, cpu_s in watched.cpu_s.items()})
