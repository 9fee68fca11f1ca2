"""When a slice is overdue: pure bookkeeping of how long slices take.

Medians, not moving averages: one process stopped for a minute would poison an average for long.
Source: backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004, section 3.6).
"""

from __future__ import annotations

from collections import deque
from statistics import median

HISTORY = 32
PATIENCE_SLICES = 2.0
PATIENCE_S = 0.03


class Lateness:
    """Knows how long slices of one kind take, and from that when somebody with some of them is overdue."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}
        self._medians: dict[str, float] = {}

    def record(self, worker: str, slice_s: float) -> None:
        """A worker has pushed a slice of the present tick; it took ``slice_s`` seconds."""
        history = self._recent.setdefault(worker, deque(maxlen=HISTORY))
        history.append(slice_s)
        self._medians[worker] = median(history)

    def forget(self, worker: str) -> None:
        """A worker has left."""
        self._recent.pop(worker, None)
        self._medians.pop(worker, None)

    def due_s(self, worker: str, since_s: float, num_slices: int) -> float:
        """When ``num_slices`` begun by a worker at ``since_s`` are overdue; never, where nothing is known."""
        if not self._medians:
            return float("inf")
        slice_s = self._medians.get(worker) or median(self._medians.values())
        return since_s + num_slices * slice_s + max(PATIENCE_SLICES * slice_s, PATIENCE_S)
