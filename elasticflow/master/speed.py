"""How fast a run's steps are made, of late. Pure."""

from __future__ import annotations

from collections import deque

RATE_WINDOW_S = 5.0
"""The speed is that of steps of so long: of fewer it would jump, of more it would say what was."""
TOGETHER_S = 0.1
"""A master that follows another hears at once what was told meanwhile; of that the last counts."""


class StepSpeed:
    """Of what the leading server tells."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        """(time, steps done) since the number of workers, or what they had done, changed last."""
        self._first_s = 0.0
        """When something was heard first, or first again."""

    def add(self, now_s: float, steps: int) -> None:
        """So many steps are done now."""
        if not self._steps:
            self._first_s = now_s
        elif len(self._steps) == 1 and now_s < self._first_s + TOGETHER_S:
            self._steps.clear()
        self._steps.append((now_s, steps))
        while self._steps[0][0] < now_s - RATE_WINDOW_S and len(self._steps) > 2:
            self._steps.popleft()

    def forget(self) -> None:
        """Steps are made again from an earlier one on."""
        self._steps.clear()

    def begin_anew(self) -> None:
        """There is another number of workers: so many have another speed."""
        while len(self._steps) > 1:
            self._steps.popleft()

    def recent(self, now_s: float) -> tuple[int, float] | None:
        """Steps, and the seconds they took: more and more while nothing is heard for longer than usual.

        None: nobody knows.
        """
        if len(self._steps) < 2:
            return None
        (first_s, first), (last_s, last) = self._steps[0], self._steps[-1]
        if last_s <= first_s or last <= first:
            return None
        seconds = last_s - first_s
        still_s = max(0.0, now_s - last_s - max(RATE_WINDOW_S, seconds))
        return last - first, seconds + still_s
