"""Ticks that took much longer than others of their kind: somebody had to be waited for."""

from __future__ import annotations

from collections import deque
from statistics import median

from elasticflow.step.schedule import Kind

USUAL = 2.0
"""A tick that takes up to so many times the median is nothing unusual."""
LEAST_S = 0.01
"""What is shorter is noise of the machine."""
REMEMBERED, ENOUGH = 50, 5


class Stalls:
    """Told of each tick once it is done; remembers those that took long until they are taken.

    begun_s: when the first of them began; each other begins when the one before is done.
    """

    def __init__(self, begun_s: float) -> None:
        self._begun_s = begun_s
        self._recent_s = {kind: deque[float](maxlen=REMEMBERED) for kind in Kind}
        self._long: list[tuple[int, float]] = []

    def done(self, tick: int, kind: Kind, now_s: float) -> None:
        """A tick is done now."""
        seconds, self._begun_s = now_s - self._begun_s, now_s
        recent_s = self._recent_s[kind]
        if len(recent_s) >= ENOUGH:
            beyond_s = seconds - USUAL * median(recent_s)
            if beyond_s >= LEAST_S:
                self._long.append((tick, beyond_s))
        recent_s.append(seconds)

    def take(self) -> tuple[tuple[int, float], ...]:
        """(tick, seconds beyond twice the median) of those since the last call."""
        long, self._long = tuple(self._long), []
        return long
