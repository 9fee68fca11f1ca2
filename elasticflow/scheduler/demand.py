"""What the jobs to come may need: as many GPU-seconds as those that came lately."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Demand:
    """Remembers the cost of each arrival for ``memory_s``."""

    memory_s: float
    least_s: float
    first_s: float | None = None
    arrivals: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now_s: float, gpu_seconds: float) -> None:
        """A job arrived that would cost so much by itself."""
        if self.first_s is None:
            self.first_s = now_s
        self.arrivals.append((now_s, gpu_seconds))

    def of_smaller(self, gpu_seconds: float, now_s: float, lasts_s: float) -> float:
        """GPU-seconds of the jobs expected within ``lasts_s`` that cost less than this one."""
        while self.arrivals and self.arrivals[0][0] < now_s - self.memory_s:
            self.arrivals.popleft()
        if self.first_s is None:
            return 0.0
        seen_s = max(min(now_s - self.first_s, self.memory_s), self.least_s)
        return sum(cost for _, cost in self.arrivals if cost < gpu_seconds) * lasts_s / seen_s
