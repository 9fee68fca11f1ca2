"""What jobs cost that came lately: whether one is among the dear ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

MEMORY_S = 86_400.0
ENOUGH_ARRIVALS = 10


@dataclass
class Demand:
    """Remembers the GPU-seconds of each arrival for a day."""

    arrivals: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now_s: float, gpu_seconds: float) -> None:
        """A job arrived that would cost so much by itself."""
        self.arrivals.append((now_s, gpu_seconds))
        while self.arrivals[0][0] < now_s - MEMORY_S:
            self.arrivals.popleft()

    def part_cheaper(self, gpu_seconds: float) -> float:
        """Which part of the arrivals cost less; few arrivals count as if there had been more, and dearer."""
        costs = np.fromiter((cost for _, cost in self.arrivals), dtype=np.float64)
        return float((costs < gpu_seconds).sum()) / max(len(costs), ENOUGH_ARRIVALS)
