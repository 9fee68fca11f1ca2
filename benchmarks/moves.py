"""Workers that carry the servers join, leave and die: how long no new step is made, how many are redone."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.cases import MIDDLE
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import Interval, Job, job
from elasticflow.run.telling import LiveStatus

ROUNDS = 3
DEATHS = 4
"""In each round."""
CALM_S = 1.5
"""Before something happens, and after it."""
EIGHT = MIDDLE._replace(
    name="20 ms, 1 MB, in eight slices", slices=8, slice_records=MIDDLE.slice_records // 2
)
"""So that each of three workers has some: of four slices the third would have none, and the timelines of
those who are killed are lost."""
STEPS = 200 * EIGHT.steps
CARRIED = ("--strategy", "all_reduce", "--places", 4, "--checkpoint-every", "24h")
COMMAND = "python -m benchmarks moves"
AGAIN = re.compile(
    r"the servers go on from step \d+, which they had in \w+: (?:(\d+) steps back|no step is lost)"
)


class Cost(NamedTuple):
    """idle_s: the longest time without a step that there was not before, beyond the usual one, ``step_s``.
    redone: steps that were made again."""

    idle_s: float
    step_s: float
    redone: int


def _is_settled(status: LiveStatus, count: int) -> bool:
    """So many workers are ready, and each carries something that serves."""
    ready = {worker.name for worker in status.workers if worker.state == "ready"}
    serve = all(server.state == "ready" for server in status.servers)
    carriers = {server.place.removeprefix("carried by ") for server in status.servers}
    return len(ready) == len(status.workers) == count and serve and carriers == ready


def steps_again(status: LiveStatus) -> tuple[int, ...]:
    """Steps that were made again, of each time that all have begun anew so far."""
    found = [AGAIN.search(str(event)) for event in status.events]
    return tuple(int(each[1] or 0) for each in found if each)


def _cost(timelines: dict[str, list[Interval]], since_s: float, until_s: float, redone: int) -> Cost:
    """Of what happened in that time."""
    first: dict[int, float] = {}
    for timeline in timelines.values():
        for each in timeline:
            if each.what == "computing":
                first[each.tick] = min(each.since_s, first.get(each.tick, each.since_s))
    made = [first[tick] for tick in sorted(first)]
    between = [(a, b - a) for a, b in zip(made, made[1:], strict=False)]
    usual_s = median([took_s for a, took_s in between if a < since_s][-40:])
    longest_s = max(took_s for a, took_s in between if since_s - took_s <= a <= until_s)
    return Cost(longest_s - usual_s, usual_s, redone)


class Scene:
    """One run, to which things are done one after the other."""

    def __init__(self, one: Job) -> None:
        self._one = one
        self._moments: list[tuple[str, float, float, int]] = []

    def settle(self, count: int) -> LiveStatus:
        """Waits until so many workers are there, and for a moment more."""
        self._one.wait_for(lambda status: _is_settled(status, count))
        time.sleep(CALM_S)
        return self._one.wait_for(lambda status: _is_settled(status, count))

    def do(self, name: str, what: Callable[[LiveStatus], None], before: int, after: int) -> None:
        """Does something, that is called so, to so many workers, of which so many are to come."""
        status = self.settle(before)
        there = {worker.name for worker in status.workers}
        since_s = time.monotonic()
        what(status)
        if before == after:  # somebody has to come in another's place
            self._one.wait_for(lambda status: there != {worker.name for worker in status.workers})
        redone = steps_again(self.settle(after))
        again = sum(redone[len(steps_again(status)) :])
        self._moments.append((name, since_s, time.monotonic(), again))

    def costs(self) -> list[tuple[str, Cost]]:
        """By what was done, once the run has ended."""
        timelines = self._one.timelines()
        return [(name, _cost(timelines, *times)) for name, *times in self._moments]  # type: ignore[arg-type]


def _kill(status: LiveStatus) -> None:
    """Not the first worker, whose timeline is looked at."""
    os.kill(status.workers[1].pid, signal.SIGKILL)


def scene() -> list[tuple[str, Cost]]:
    """What happens, in this order, to one run."""
    with job(
        EIGHT, "--workers", 2, *CARRIED, steps=STEPS, settings={"snapshot_s": 0.2, "least_gain": 0.0}
    ) as one:
        played = Scene(one)
        played.do("join", lambda status: one.ask("scale", 3), 2, 3)
        for _ in range(DEATHS):
            played.do("death", _kill, 3, 3)
        played.do("leave", lambda status: one.ask("scale", 2), 3, 2)
        one.ask("stop")
        one.wait()
        return played.costs()


def run() -> Iterator[Figure]:
    """In turns."""
    found = [each for _ in range(ROUNDS) for each in scene()]
    for name in ("join", "leave", "death"):
        costs = [cost for what, cost in found if what == name]
        idle_ms, step_ms = (1000 * median([getattr(c, each) for c in costs]) for each in ("idle_s", "step_s"))
        note = f"a step takes {step_ms:.0f} ms"
        yield figure(f"{name}: longest without a new step", idle_ms, "ms", 60.0, COMMAND, note)
        redone = sorted(cost.redone for cost in costs)
        bound = 6.0 if name == "death" else 0.0
        yield figure(f"{name}: steps made again", median(redone), "", bound, COMMAND, f"of all: {redone}")
