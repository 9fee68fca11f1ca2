"""What jobs cost that came lately: whether one is among the dear ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

MEMORY_S = 86_400.0
ENOUGH_ARRIVALS = 10


@dataclass
class Demand:
    """Remembers the GPU-seconds of each arrival for a day."""

    arrivals: deque[tuple[float, float]] = field(default_factory=deque)
    costs: list[float] = field(default_factory=list)
    """Of the arrivals, ascending."""

    def add(self, now_s: float, gpu_seconds: float) -> None:
        """A job arrived that would cost so much by itself."""
        self.arrivals.append((now_s, gpu_seconds))
        insort(self.costs, gpu_seconds)
        while self.arrivals[0][0] < now_s - MEMORY_S:
            del self.costs[bisect_left(self.costs, self.arrivals.popleft()[1])]

    def copy(self) -> Demand:
        """One that can be added to by itself."""
        return Demand(deque(self.arrivals), list(self.costs))

    def part_cheaper(self, gpu_seconds: float) -> float:
        """Which part of the arrivals cost less; few arrivals count as if there had been more, and dearer."""
        return bisect_left(self.costs, gpu_seconds) / max(len(self.costs), ENOUGH_ARRIVALS)

    def cost_at(self, part: float) -> float:
        """What an arrival costs at least of which this part is cheaper; 0 as long as too few have come."""
        index = int(part * max(len(self.costs), ENOUGH_ARRIVALS))
        return self.costs[index] if index < len(self.costs) else 0.0
