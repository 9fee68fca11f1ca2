"""Which worker computes which slices, and when they are to be given to others: pure.

Which slices a worker computes has no influence on any bit, so speeds may be followed freely.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.master.plan import Speed, make_plan, unevenness
from elasticflow.wire.messages import Share

COMPARE_S = 0.5
"""Speeds are looked at no more often: with many workers heartbeats come all the time."""
UNEVEN, UNEVEN_S = 1.25, 3.0
"""Slices are given to others if the slowest takes so many times longer than it needs to, for so long."""
PROBE_S = 30.0
"""After so long a worker that is too slow for any slice tries one again."""


class Balance:
    """The present plan, and how well it fits the workers' speeds. number: of the plan that was told last."""

    def __init__(self, num_slices: int) -> None:
        self.shares: tuple[Share, ...] = ()
        self.number = 0
        self._num_slices = num_slices
        self._compared_s = 0.0
        """When speeds were looked at last."""
        self._told_s: float | None = None
        """When the present plan had been told."""
        self._uneven_since_s: float | None = None
        """For so long workers have waited for one another by the present plan."""

    def take(self, shares: tuple[Share, ...]) -> None:
        """This is the plan from now on."""
        self.shares, self._told_s, self._uneven_since_s = shares, None, None

    def fitting(self, speeds: Sequence[Speed]) -> tuple[Share, ...] | None:
        """A plan for workers of these speeds; None: the present one."""
        shares = make_plan(speeds, self._num_slices)
        return None if shares == self.shares else shares

    def is_to_be_compared(self, now_s: float) -> bool:
        """Whether it is time for ``follow``."""
        return bool(self.shares) and now_s >= self._compared_s + COMPARE_S

    def follow(self, speeds: Sequence[Speed], now_s: float) -> tuple[Share, ...] | None:
        """Another plan, if by the present one they have waited for the slowest for a while.

        Who is too slow for any slice tries one again now and then, or nobody would hear that it is not.
        """
        self._compared_s = now_s
        self._told_s = now_s if self._told_s is None else self._told_s
        if unevenness(self.shares, speeds, self._num_slices) < UNEVEN:
            self._uneven_since_s = None
        elif self._uneven_since_s is None:
            self._uneven_since_s = now_s
        elif now_s >= self._uneven_since_s + UNEVEN_S:
            return self.fitting(speeds)
        if now_s >= self._told_s + PROBE_S and len(self.shares) < min(len(speeds), self._num_slices):
            shown = {share.worker for share in self.shares}
            tried = [speed if speed.worker in shown else Speed(speed.worker, 0.0) for speed in speeds]
            return make_plan(tried, self._num_slices)
        return None
