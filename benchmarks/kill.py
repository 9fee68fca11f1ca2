"""kill -9 of one of three workers: how long the others stand idle, beside the time until anybody can know.

And of the server: how long it takes until workers go on, and how many steps are made again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.cases import LARGE, MIDDLE, Case
from benchmarks.crowd import server_pid
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import Interval, job
from benchmarks.moves import steps_again

ROUNDS = 3
STEPS_AFTER = 5
COMMAND = "python -m benchmarks kill"


class _Kill:
    """What one kill cost the survivors.

    in_step: most seconds for which one stood idle until it was given work of the dead, beyond what it
    waits in other steps. after: the same in the steps that followed.
    """

    def __init__(self, timelines: dict[str, list[Interval]], killed_s: float, slice_s: float) -> None:
        self.slice_s = slice_s
        self.in_step = 0.0
        self.after: list[float] = []
        for timeline in timelines.values():
            idle = idle_by_tick(timeline)
            tick = next(each.tick for each in timeline if each.until_s >= killed_s)
            # With three workers on two processors the plan may have left it without slices.
            usual = median([idle[t] for t in range(tick - 40, tick) if t in idle] or [0.0])
            # The victim's slices may be missing from this step, or, if it had pushed, from the next.
            self.in_step = max(self.in_step, *(idle.get(t, 0.0) - usual for t in (tick, tick + 1)))
            self.after += [idle.get(t, 0.0) - usual for t in range(tick + 2, tick + 2 + STEPS_AFTER)]


def idle_by_tick(timeline: list[Interval]) -> dict[int, float]:
    """Seconds of each tick for which a worker waited before the last thing it computed in it, or its end.

    Once it has been given a share of the missing work, it waits for others' shares as in any step.
    """
    waited: dict[int, float] = defaultdict(float)
    before: dict[int, float] = {}
    computed: dict[int, int] = defaultdict(int)
    for each in timeline:
        if each.what == "waiting":
            waited[each.tick] += each.seconds
        else:
            computed[each.tick] += 1
            before[each.tick] = waited[each.tick]
    nodes = median(list(computed.values()))
    return {tick: before[tick] if computed[tick] > nodes else waited[tick] for tick in computed}


def _kill(case: Case) -> _Kill:
    with job(case, "--workers", 3, "--servers", 1, steps=4 * case.steps) as one:
        status = one.wait_until(3, step=case.steps)
        victim = next(each for each in status.workers if each.name == "worker-2")
        killed_s = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        one.wait()
        timelines = one.timelines()
        survivors = {name: timelines[name] for name in ("worker-1", "worker-3")}
        spent = [i.seconds for t in survivors.values() for i in t if i.what == "computing"]
        return _Kill(survivors, killed_s, median(spent) / (case.slices / 3))


def _server_kill() -> tuple[float, int]:
    """Of the one that serves: seconds until workers go on, from the newest copy, and steps made again."""
    with job(MIDDLE, "--workers", 2, "--servers", 1, "--checkpoint-every", "24h", steps=10**6) as one:
        status = one.wait_until(2, step=2 * MIDDLE.steps)
        killed_s = time.monotonic()
        os.kill(server_pid(status), signal.SIGKILL)
        again = steps_again(one.wait_for(steps_again))
        one.wait_until(2, step=status.step + MIDDLE.steps)
        one.ask("stop")
        one.wait()
        recovering = [
            sum(i.seconds for i in timeline if i.what == "recovering" and i.since_s > killed_s - 1)
            for timeline in one.timelines().values()
        ]
    return max(recovering), sum(again)


CLOSING = """
import os, signal, time, torch
for _ in range(5):
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.write(writing, b".")
        signal.pause()
    os.close(writing)
    os.read(reading, 1)
    since_s = time.monotonic()
    os.kill(process, signal.SIGKILL)
    os.read(reading, 1)
    print(time.monotonic() - since_s)
    os.waitpid(process, 0)
    os.close(reading)
"""


def closing_s() -> float:
    """From kill -9 until the system closes what the dead had open, which it does after it has let go of its
    memory. Of a process that is forked, as workers are, of one with PyTorch."""
    output = subprocess.run([sys.executable, "-c", CLOSING], check=True, stdout=subprocess.PIPE).stdout
    return median([float(line) for line in output.split()])


def run() -> Iterator[Figure]:
    """For the cases of 20 and 100 ms."""
    least = 1000 * closing_s()
    for case in (MIDDLE, LARGE):
        kills = [_kill(case) for _ in range(ROUNDS)]
        worst = 1000 * max(each.in_step for each in kills)
        slice_ms = 1000 * median([each.slice_s for each in kills])
        yield figure(
            f"{case.name}: idle in the step of the kill, worst", worst, "ms", least, COMMAND,
            f"reference: until its connections close; a slice takes {slice_ms:.0f} ms",
        )  # fmt: skip
        later = 1000 * median([each for kill in kills for each in kill.after])
        yield figure(
            f"{case.name}: more idle than usual in later steps", later, "ms", 5.0, COMMAND, "reference: 5 ms"
        )
    deaths = [_server_kill() for _ in range(ROUNDS)]
    name = f"{MIDDLE.name}: the server is killed"
    recovering_ms = 1000 * median([recovering_s for recovering_s, _ in deaths])
    yield figure(f"{name}, until workers go on", recovering_ms, "ms", 50.0, COMMAND, "reference: 50 ms")
    again = sorted(float(steps) for _, steps in deaths)
    yield figure(f"{name}, steps made again", median(again), "", 3.0, COMMAND, f"of all: {again}")
