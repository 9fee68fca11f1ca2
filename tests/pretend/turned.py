"""Time that tests turn, around what is decided: nothing waits."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any

from elasticflow.cluster.sizing import Sizing


class TurnedWorld(ABC):
    """sizing: who decides, and says when it will again. now_s: on the monotonic clock."""

    sizing: Sizing[Any, Any]

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self._act()
        while True:
            due_s = self.sizing.next_time_s()
            next_s = min(self._events[0][0] if self._events else end_s, end_s if due_s is None else due_s)
            if next_s >= end_s:
                break
            self._turn(max(self.now_s, next_s))
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
            self._act()
        self._turn(end_s)

    def _turn(self, now_s: float) -> None:
        self.now_s = now_s

    @abstractmethod
    def _act(self) -> None:
        """Does what is decided now."""

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))
