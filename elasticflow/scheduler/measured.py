"""What a run that went through several numbers of workers tells: the rate of each, and what each change cost.

Pure: the moments at which steps began, in; figures out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticflow.scheduler.overheads import Overheads

BLOCKS = 5
"""Parts of a phase whose means are compared, to see how sure the mean of all is."""


@dataclass(frozen=True)
class Step:
    """A step of training, from its beginning to that of the next."""

    since_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        return self.until_s - self.since_s


@dataclass(frozen=True)
class MeasuredPhase:
    """The run had ``workers`` workers. asked_s: they were asked for. ready_s: all of them took part.

    since_s to until_s: it was warm, and is measured.
    """

    workers: int
    asked_s: float
    ready_s: float
    since_s: float
    until_s: float


@dataclass(frozen=True)
class Point:
    """A measured size. noise: relative standard error of the rate."""

    workers: int
    rate: float
    noise: float
    steps: int


@dataclass(frozen=True)
class Change:
    """From ``old`` to ``new`` workers. ready_s: until all took part, or the last had left.

    standstill_s: the longest step on the way was so much longer than a usual one.
    lost_s: a job that stands still for so long, and has its new speed then, does as much.
    """

    old: int
    new: int
    ready_s: float
    standstill_s: float
    lost_s: float


def steps_of(begins_s: Mapping[int, float], num_steps: int, evaluates: bool, stages: int = 1) -> list[Step]:
    """From when each tick began. num_steps: of an epoch; evaluates: a tick that is no step follows them.

    stages: ticks of a step.
    """
    end = num_steps * stages
    firsts = [
        tick
        for tick in sorted(begins_s)
        if (inside := tick % (end + evaluates)) < end and not inside % stages
    ]
    return [
        Step(begins_s[tick], begins_s[tick + stages])
        for tick in firsts
        if all(tick + number in begins_s for number in range(1, stages + 1))
    ]


def measure(steps: Iterable[Step], phases: Iterable[MeasuredPhase]) -> list[Point]:
    """The rate of each size, from all its phases; sizes without a whole step are left out."""
    steps = list(steps)
    seconds: dict[int, list[float]] = {}
    for phase in phases:
        inside = _inside(steps, phase.since_s, phase.until_s)
        seconds.setdefault(phase.workers, []).extend(step.seconds for step in inside)
    return [_point(size, np.array(found)) for size, found in sorted(seconds.items()) if found]


def changes(
    steps: Iterable[Step], phases: Iterable[MeasuredPhase], rates: Mapping[int, float]
) -> list[Change]:
    """What it cost to go from each phase to the next. rates: iterations/s by workers."""
    steps, phases = list(steps), list(phases)
    found = []
    for old, new in zip(phases, phases[1:], strict=False):
        if old.workers in rates and new.workers in rates:
            found.append(_change(_inside(steps, new.asked_s, new.since_s), old, new, rates))
    return found


def overheads_of(found: Iterable[Change], first_step_s: float) -> Overheads:
    """What the scheduler is to charge for changes, so that no promise rests on less than was measured.

    Fewer workers cost ``same_s``, more cost ``base_s`` and ``step_s`` for each doubling. A start is charged
    as growing is, so that is no less than what the first start took.
    """
    found = list(found)
    shrinks_s = [change.lost_s for change in found if change.new < change.old]
    grows = [(0, first_step_s), *((c.new.bit_length() - 1, c.lost_s) for c in found if c.new > c.old)]
    first_s, last = grows[0][1], max(grows)
    step_s = max(0.0, last[1] - first_s) / last[0] if last[0] else 0.0
    base_s = max(lost_s - step_s * (doublings + 1) for doublings, lost_s in grows)
    return Overheads(same_s=max(shrinks_s, default=base_s), base_s=max(0.0, base_s), step_s=step_s)


def _change(steps: list[Step], old: MeasuredPhase, new: MeasuredPhase, rates: Mapping[int, float]) -> Change:
    usual_s = max(1 / rates[old.workers], 1 / rates[new.workers])
    longest_s = max((step.seconds for step in steps), default=0.0)
    took_s = sum(step.seconds for step in steps)
    return Change(
        old=old.workers,
        new=new.workers,
        ready_s=new.ready_s - new.asked_s,
        standstill_s=max(0.0, longest_s - usual_s),
        lost_s=max(0.0, took_s - len(steps) / rates[new.workers]),
    )


def _inside(steps: list[Step], since_s: float, until_s: float) -> list[Step]:
    """Steps that ended in a time."""
    return [step for step in steps if since_s < step.until_s <= until_s]


def _point(workers: int, seconds: NDArray[np.float64]) -> Point:
    """The mean, and from the means of ``BLOCKS`` parts how sure it is: neighbours are not independent."""
    mean_s = float(seconds.mean())
    parts = [part.mean() for part in np.array_split(seconds, min(BLOCKS, len(seconds)))]
    noise = float(np.std(parts, ddof=1)) / math.sqrt(len(parts)) / mean_s if len(parts) > 1 else 0.0
    return Point(workers, 1 / mean_s, noise, len(seconds))
