"""Slices that are computed twice, and whether both times the same came out of it: pure."""

from __future__ import annotations

from typing import NamedTuple

from elasticflow.wire.messages import Audited

MOST_WAITING = 4096
"""So many slices are remembered that were computed once so far, the latest ones."""


class Found(NamedTuple):
    """Two that have computed other gradients of one slice. For one worker alone: ``first`` is ``second``."""

    tick: int
    slice: int
    first: str
    second: str


class Audits:
    """equal: how many slices were computed again, and gave the same."""

    def __init__(self, equal: int = 0) -> None:
        self.equal = equal
        self._made: dict[tuple[int, int, int], Audited] = {}
        """What was pushed of a slice, or found when it was computed again, whichever came first. Where a
        record is left out meanwhile it is begun anew: the slice may be smaller, or follow from other steps.
        """

    def hear(self, event: Audited) -> Found | None:
        """What a worker has got. The first of a slice is kept; all after it are compared with it."""
        key = (event.tick, event.slice, event.left_out)
        first = self._made.setdefault(key, event)
        while len(self._made) > MOST_WAITING:
            del self._made[next(iter(self._made))]
        if first is event:
            return None
        if first.digest != event.digest:
            return Found(event.tick, event.slice, first.name, event.name)
        self.equal += 1
        return None
