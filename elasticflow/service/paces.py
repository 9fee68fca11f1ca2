"""How fast a run is with so many workers: measured as it goes, while nobody comes or goes. Pure."""

from __future__ import annotations

import statistics

SETTLED_S = 1.0
"""So long after somebody came or went a step may still be made by fewer, or take longer."""
LEAST_STEPS = 4
"""A pace is measured over as many steps at least."""
KEPT = 5
"""The median of so many of the last measurements counts, all of them made since somebody came or went."""
SURE = 3
"""That more workers brought nothing is believed of so many: it sends them away, and nothing corrects it."""
NEWS = 0.1
"""A pace is told that differs by this part from the last one that was."""


class Paces:
    """Of one run. measure_s: one measurement takes so long."""

    def __init__(self, measure_s: float) -> None:
        self._measure_s = measure_s
        self._workers = 0
        self._settled_s = 0.0
        self._since: tuple[float, int] | None = None
        """When the present measurement began, and at which step."""
        self._measured: list[float] = []
        self._told: float | None = None
        """Since somebody came or went; _by_workers: the last one of each number of workers."""
        self._by_workers: dict[int, float] = {}

    def see(self, workers: int, settled: bool, step: int, now_s: float) -> float | None:
        """So many workers are ready; settled: and nobody comes or goes. Steps a second, if that is news."""
        if workers != self._workers or not settled or not workers or self._since and step < self._since[1]:
            self._workers, self._since, self._settled_s = workers, None, now_s + SETTLED_S
            self._measured, self._told = [], None
            return None
        if now_s < self._settled_s:
            return None
        if self._since is None:
            self._since = now_s, step
            return None
        since_s, first = self._since
        if now_s - since_s < self._measure_s or step - first < LEAST_STEPS:
            return None
        self._since = now_s, step
        return self._take((step - first) / (now_s - since_s))

    def _take(self, rate: float) -> float | None:
        self._measured = [*self._measured, rate][-KEPT:]
        usual = statistics.median(self._measured)
        fewer = (pace for workers, pace in self._by_workers.items() if workers < self._workers)
        if usual <= max(fewer, default=0.0) and len(self._measured) < SURE:
            return None
        if self._told is not None and abs(usual / self._told - 1) <= NEWS:
            return None
        self._told = self._by_workers[self._workers] = usual
        return usual
