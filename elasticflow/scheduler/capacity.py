"""How many GPUs may be used when, as far as that is known ahead: hours of the day, maintenance. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from elasticflow.scheduler.timeline import ClusterTimeline


@dataclass(frozen=True)
class Capacity:
    """From each of these times on at most so many, the last one for ever; before the first, all."""

    starts_s: tuple[float, ...] = ()
    num_gpus: tuple[int, ...] = ()

    def at(self, time_s: float) -> float:
        """Infinite where nothing is said."""
        step = bisect_right(self.starts_s, time_s) - 1
        return self.num_gpus[step] if step >= 0 else inf

    def next_change_s(self, time_s: float) -> float:
        """Infinite if there is none."""
        step = bisect_right(self.starts_s, time_s)
        return self.starts_s[step] if step < len(self.starts_s) else inf

    def timeline(self, now_s: float, num_up: int, max_steps: int) -> ClusterTimeline:
        """What is free where nothing is taken yet, of so many that are there."""
        timeline = ClusterTimeline(now_s, num_up, max_steps)
        for start_s, end_s, most in zip(self.starts_s, (*self.starts_s, inf)[1:], self.num_gpus, strict=True):
            if end_s > now_s:
                timeline.limit(start_s, end_s, most)
        return timeline


def capacity(steps: Iterable[tuple[float, int]]) -> Capacity:
    """From (from when on, how many) in the order of time; what changes nothing is left out."""
    starts_s: list[float] = []
    num_gpus: list[int] = []
    for start_s, most in steps:
        if num_gpus and num_gpus[-1] == most:
            continue
        starts_s.append(start_s)
        num_gpus.append(most)
    return Capacity(tuple(starts_s), tuple(num_gpus))


ALL = Capacity()
"""All there are, always."""
