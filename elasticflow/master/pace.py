"""How long a step takes, as the master sees it, and for how long one is waited for. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

REMEMBERED = 9
"""So many measurements say how long a step takes."""
PAUSE_S, PAUSE_STEPS = 5.0, 3
"""So long, and so many times what a step takes, all are waited for to come to the same version."""


class StepPace:
    """Told of versions as they are made."""

    def __init__(self) -> None:
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED)
        self._version: tuple[int, float] | None = None
        self._first_s = 0.0
        self.pause_by_s: float | None = None
        """Until then servers that are to pause may take; None: none are, or another master has told them."""

    def guess(self, step_s: float) -> None:
        """What a step may take, as long as none was made."""
        self._first_s = max(self._first_s, step_s)

    def made(self, version: int, now_s: float) -> None:
        """The run has come to this version."""
        if self._version and version > self._version[0]:
            before, since_s = self._version
            self._steps_s.append(max(0.0, now_s - since_s) / (version - before))
        self._version = version, now_s

    def wait(self, now_s: float) -> None:
        """Nobody is there who could make a step, or servers begin anew: no step takes that long."""
        if self._version:
            self._version = self._version[0], now_s

    def excuse(self, seconds: float) -> None:
        """For so long nobody could do anything, or be heard."""
        if self._version:
            self._version = self._version[0], self._version[1] + seconds

    @property
    def step_s(self) -> float:
        """How long a step takes; 0: nobody knows."""
        return median(self._steps_s) if self._steps_s else self._first_s

    def may_pause(self, now_s: float) -> bool:
        """Servers are to pause, from the first call on: whether that may still take some time."""
        if self.pause_by_s is None:
            self.pause_by_s = now_s + max(PAUSE_S, PAUSE_STEPS * self.step_s)
        return now_s < self.pause_by_s

    def end_pause(self) -> None:
        """Nobody is waited for to pause."""
        self.pause_by_s = None
