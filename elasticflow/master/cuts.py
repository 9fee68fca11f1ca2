"""When the next checkpoint is to be ordered from here, and when this master has to hand over: pure.

Checkpoints that come every so many steps are ordered by the leading server itself.
"""

from __future__ import annotations

FOREVER_S = float("inf")


class Cuts:
    """every_s: between two checkpoints; None: only where one is needed.

    stop_at_s: when the run's time limit is over; None: it has none.
    """

    def __init__(self, every_s: float | None, stop_at_s: float | None) -> None:
        self._every_s, self._stop_at_s = every_s, stop_at_s
        self._last_s: float | None = None
        self.move_by_s: float | None = None
        """When this master must have handed over; None: it may stay."""
        self._moving = False
        """Whether the checkpoint to hand over with is still to be ordered."""
        self._enough_after: int | None = None
        """Once it is: a commit of a version beyond this one is enough."""

    def begin(self, now_s: float) -> None:
        """Steps are made from now on."""
        self._last_s = now_s

    def begin_again(self, now_s: float) -> None:
        """Nobody knows how long ago the last one was ordered, by the master before this one."""
        self._last_s = now_s - (self._every_s or 0.0)

    def limit_s(self, stopping: bool) -> float:
        """When the time limit has the run end from here."""
        return FOREVER_S if self._stop_at_s is None or stopping else self._stop_at_s

    def due_s(self, stopping: bool) -> float:
        """When the next checkpoint is to be ordered from here."""
        if self._moving and not stopping:
            return float("-inf")
        if self._every_s is None or self._last_s is None or stopping:
            return FOREVER_S
        return self._last_s + self._every_s

    def order(self, version: int, now_s: float) -> None:
        """One is ordered, now that there is this version."""
        self._enough_after = version if self._moving else self._enough_after
        self._last_s, self._moving = now_s, False

    def have_to_move(self, by_s: float) -> None:
        """The place of this master ends then."""
        self.move_by_s = by_s

    def order_for_move(self) -> None:
        """There is something to be kept: a checkpoint first."""
        self._moving = True

    def go_back(self) -> None:
        """What was done since the version gone back to has not happened; nor has a checkpoint of it."""
        self._moving = self.move_by_s is not None and self.move_by_s < FOREVER_S
        self._enough_after = None

    def may_hand_over(self, tick: int) -> bool:
        """Whether a commit of this version is enough to hand over with."""
        return self._enough_after is not None and tick > self._enough_after

    def hand_over(self) -> None:
        """That is done once."""
        self.move_by_s, self._moving, self._enough_after = FOREVER_S, False, None
