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
    """Told of each tick once it is done; remembers those that took long until they are taken."""

    def __init__(self) -> None:
        self._recent_s = {kind: deque[float](maxlen=REMEMBERED) for kind in Kind}
        self._long: list[tuple[int, float]] = []

    def done(self, tick: int, kind: Kind, seconds: float) -> None:
        """A tick has taken so long."""
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
