"""How fast a run is with so many workers: measured as it goes, while nobody comes or goes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SETTLED_S = 1.0
"""So long after somebody came or went a step may still be made by fewer, or take longer."""
LEAST_STEPS = 4
"""A pace is measured over as many steps at least."""


@dataclass
class Pace:
    """Of one run. measure_s: a pace is measured for so long."""

    measure_s: float
    workers: int = 0
    _since: tuple[float, int] | None = None
    _settled_s: float = 0.0

    def see(self, workers: int, settled: bool, step: int, now_s: float) -> float | None:
        """So many workers are ready; settled: and nobody comes or goes. Steps a second, once known."""
        if workers != self.workers or not settled or not workers or self._since and step < self._since[1]:
            self.workers, self._since, self._settled_s = workers, None, now_s + SETTLED_S
            return None
        if now_s < self._settled_s:
            return None
        if self._since is None:
            self._since = now_s, step
            return None
        since_s, first = self._since
        if now_s - since_s < self.measure_s or step - first < LEAST_STEPS:
            return None
        self._since = now_s, step
        return (step - first) / (now_s - since_s)
