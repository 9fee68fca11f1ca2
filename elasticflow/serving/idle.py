"""Connections on which nothing is asked: who opens many of them, and says nothing, would keep all others out.

uvicorn closes those alone that have been answered, and that say nothing at all then: not one that asks letter
by letter, or does not take its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

C = TypeVar("C")

IDLE_S = 10.0
"""So long a question may take to be one; what is sent with it has a time of its own."""


class IdleConnections:
    """Pure: somebody looks now and then, and closes what is named."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[object, float]] = {}
        """Of each that has nothing to be answered: its last question, and when that was seen first."""

    def look(self, idle: Mapping[C, object], now_s: float) -> list[C]:
        """Which are to be closed. idle: those that have nothing to be answered, with their last question."""
        known = self._since
        self._since = {}
        for each, last in idle.items():
            asked, since_s = known.get(each, (last, now_s))
            self._since[each] = (last, since_s if asked is last else now_s)
        return [each for each in idle if now_s - self._since[each][1] > IDLE_S]
