"""kill -9 of one of three workers: how long the others stand idle, beside the time of a slice."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.cases import LARGE, MIDDLE, Case
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import Interval, job

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
            usual = median([idle[t] for t in range(tick - 40, tick) if t in idle])
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


def run() -> Iterator[Figure]:
    """For the cases of 20 and 100 ms."""
    for case in (MIDDLE, LARGE):
        kills = [_kill(case) for _ in range(ROUNDS)]
        worst = 1000 * max(each.in_step for each in kills)
        bound = max(50.0, 2000 * median([each.slice_s for each in kills]))
        yield figure(
            f"{case.name}: idle in the step of the kill, worst", worst, "ms", bound, COMMAND,
            "reference: two slices or 50 ms",
        )  # fmt: skip
        later = 1000 * median([each for kill in kills for each in kill.after])
        yield figure(
            f"{case.name}: more idle than usual in later steps", later, "ms", 5.0, COMMAND, "reference: 5 ms"
        )
