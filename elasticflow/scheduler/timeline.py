"""Free GPUs over time, from now on, as steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Timeline:
    """Between ``starts_s[k]`` and the next start ``free[k]`` GPUs are free; the last lasts for ever.

    At most ``max_steps``: beyond, what is taken is rounded up to the end of its last step.
    """

    def __init__(self, now_s: float, num_gpus: int, max_steps: int = 512) -> None:
        self.now_s, self.max_steps = now_s, max_steps
        self._starts, self._free = np.empty(max_steps + 8), np.empty(max_steps + 8, dtype=np.int64)
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

    def take(self, shares: Ints | int, end_s: float) -> None:
        """Takes ``shares`` of each step that starts before ``end_s``, until then."""
        last = self.num_before(end_s) if isinstance(shares, int) else len(shares)
        end_s = max(end_s, float(self._starts[last - 1]))  # it may be earlier by rounding
        if last == self._len or self._starts[last] > end_s:
            self._split(last, end_s)
        self._free[:last] -= shares

    def copy(self) -> Timeline:
        """One that can be changed by itself."""
        other = Timeline(self.now_s, 0, self.max_steps)
        other._len = self._len
        other._starts[: self._len], other._free[: self._len] = self.starts_s, self.free
        return other

    def _split(self, at: int, time_s: float) -> None:
        """Starts a step at ``time_s``; not within a step that ends, once there are ``max_steps``."""
        if self._len >= self.max_steps and at < self._len:
            return
        if self._len == len(self._starts):
            self._starts, self._free = np.resize(self._starts, 2 * at), np.resize(self._free, 2 * at)
        self._starts[at + 1 : self._len + 1] = self._starts[at : self._len].copy()
        self._free[at + 1 : self._len + 1] = self._free[at : self._len].copy()
        self._starts[at], self._free[at] = time_s, self._free[at - 1]
        self._len += 1
