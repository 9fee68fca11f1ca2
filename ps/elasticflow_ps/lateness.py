"""When a slice is overdue: pure bookkeeping of how long slices take.

Medians, not moving averages: one process stopped for a minute would poison an average for long.
Source: backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004, section 3.6).
"""

from __future__ import annotations

from collections import deque
from statistics import median

HISTORY = 32
# With 1.5 times, 2 to 20 % of the slices were called overdue by mistake.
PATIENCE_SLICES = 2.0
PATIENCE_S = 0.03


class Lateness:
    """Knows how long slices of one kind take, and so when somebody with some of them is overdue.

    What else lies between the opening of a tick and a worker's first push, its ``lag``, is the time that
    arrays take to it and from it: much, where the model is large and the network is not.
    """

    def __init__(self) -> None:
        self._slices, self._lags = _Medians(), _Medians()

    def record(self, worker: str, slice_s: float) -> None:
        """A worker has pushed a slice of the present tick; it took ``slice_s`` seconds."""
        self._slices.add(worker, slice_s)

    def record_lag(self, worker: str, lag_s: float) -> None:
        """A worker's first push has come so long after the tick was opened, beside what its slices took."""
        self._lags.add(worker, max(0.0, lag_s))

    def forget(self, worker: str) -> None:
        """A worker has left."""
        self._slices.forget(worker)
        self._lags.forget(worker)

    def slice_s(self, worker: str) -> float:
        """Seconds that a slice takes a worker; 0, where nothing is known."""
        return self._slices.of(worker) or 0.0

    def due_s(self, worker: str, since_s: float, num_slices: int, *, lags: bool = False) -> float:
        """When ``num_slices`` begun by a worker at ``since_s`` are overdue; never, where nothing is known.

        lags: they are begun when the version that is there since then has come to it.
        """
        slice_s = self._slices.of(worker)
        if slice_s is None:
            return float("inf")
        lag_s = (self._lags.of(worker) or 0.0) if lags else 0.0
        return since_s + lag_s + num_slices * slice_s + max(PATIENCE_SLICES * slice_s, PATIENCE_S)


class _Medians:
    """By worker, of the latest values."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}
        self._medians: dict[str, float] = {}

    def add(self, worker: str, value: float) -> None:
        history = self._recent.setdefault(worker, deque(maxlen=HISTORY))
        history.append(value)
        ordered = sorted(history)  # statistics.median takes three times as long
        self._medians[worker] = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    def forget(self, worker: str) -> None:
        self._recent.pop(worker, None)
        self._medians.pop(worker, None)

    def of(self, worker: str) -> float | None:
        """A worker's, of one without any that of the others; None: nobody has any."""
        if not self._medians:
            return None
        known = self._medians.get(worker)
        return median(self._medians.values()) if known is None else known
