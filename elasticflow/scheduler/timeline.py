"""Free GPUs over time, from now on, as steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHORTEST_S = 1e-3
"""A job that is done now still has its GPUs."""


class ClusterTimeline:
    """Between ``starts_s[k]`` and the next start ``free[k]`` GPUs are free; the last lasts for ever.

    At most ``max_steps``: beyond, neighbours become one, with as many free as the poorer of them.
    """

    def __init__(self, now_s: float, num_gpus: int, max_steps: int = 512) -> None:
        self.now_s, self.max_steps = now_s, max_steps
        self._starts, self._free = np.empty(max_steps + 1), np.empty(max_steps + 1, dtype=np.int64)
        self._starts[0], self._free[0], self._len = now_s, num_gpus, 1

    @property
    def starts_s(self) -> Floats:
        """When each step starts; the first one starts now."""
        return self._starts[: self._len]

    @property
    def free(self) -> Ints:
        """GPUs that nobody has taken, by step."""
        return self._free[: self._len]

    def num_before(self, end_s: float) -> int:
        """How many steps start before ``end_s``."""
        return int(self.starts_s.searchsorted(end_s, "left"))

    def lowest_before(self, end_s: float) -> int:
        """So many are free at any time from now until then."""
        return int(self.free[: max(1, self.num_before(end_s))].min())

    def take(self, shares: Ints | int, end_s: float) -> None:
        """Takes ``shares`` of each step that starts before ``end_s``, until then."""
        end_s = max(end_s, self.now_s + SHORTEST_S)
        last = self.num_before(end_s) if isinstance(shares, int) else len(shares)
        end_s = max(end_s, float(self._starts[last - 1]))  # it may be earlier by rounding
        if last == self._len or self._starts[last] > end_s:
            self._split(last, end_s)
        self._free[:last] -= shares
        if self._len > self.max_steps:
            self._merge()

    def mark(self, time_s: float) -> None:
        """Makes a step start then, if that is later than now."""
        at = self.num_before(time_s)
        if at and (at == self._len or self._starts[at] > time_s):
            self._split(at, time_s)
            if self._len > self.max_steps:
                self._merge()

    def limit(self, start_s: float, end_s: float, most: int) -> None:
        """No more than so many are free between these times."""
        for time_s in (start_s, end_s):
            if time_s < np.inf:
                self.mark(time_s)
        first = max(int(self.starts_s.searchsorted(start_s, "right")) - 1, 0)
        part = self.free[first : self.num_before(end_s)]
        np.minimum(part, most, out=part)

    def copy(self) -> ClusterTimeline:
        """One that can be changed by itself."""
        other = ClusterTimeline(self.now_s, 0, self.max_steps)
        other._len = self._len
        other._starts[: self._len], other._free[: self._len] = self.starts_s, self.free
        return other

    def _split(self, at: int, time_s: float) -> None:
        """Starts a step at ``time_s``."""
        self._starts[at + 1 : self._len + 1] = self._starts[at : self._len].copy()
        self._free[at + 1 : self._len + 1] = self._free[at : self._len].copy()
        self._starts[at], self._free[at] = time_s, self._free[at - 1]
        self._len += 1

    def _merge(self) -> None:
        """A quarter fewer steps: of all pairs of neighbours, the half that loses the fewest GPU-seconds."""
        pairs = np.arange(0, self._len - 2, 2)
        lasts_s, free = np.diff(self.starts_s), self.free
        lost = np.abs(free[pairs] - free[pairs + 1]) * np.where(
            free[pairs] > free[pairs + 1], lasts_s[pairs], lasts_s[pairs + 1]
        )
        merged = pairs[np.argsort(lost, kind="stable")[: len(pairs) // 2]]
        free[merged] = np.minimum(free[merged], free[merged + 1])
        keep = np.ones(self._len, dtype=bool)
        keep[merged + 1] = False
        self._len = int(keep.sum())
        self._starts[: self._len], self._free[: self._len] = (
            self._starts[: len(keep)][keep],
            self._free[: len(keep)][keep],
        )
