"""How runs share a cluster that know of one another by its list alone: who has more waits, or gives back.

No run asks for another worker while one that waits has fewer. If that goes on for ``patience_s``, a run that
has two more than the poorest gives some back, half of the difference at most, and no more until that has
helped. A run that stays as poor for long is not helped by others' places: then nobody waits for it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STUCK_PATIENCES = 10
"""After so many times ``patience_s`` with as many workers, a run that waits holds up nobody."""


class OtherRun(NamedTuple):
    """In the same places. name: for people; running, waiting: workers, the latter for places alone."""

    name: str
    running: int
    waiting: int


class FairShare:
    """Of one run. patience_s: what waits for less time may be about to start."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._others: dict[str, OtherRun] = {}
        self._since_s: dict[str, float] = {}
        """Since when each of them waits with as many workers as now."""
        self._gave: dict[str, int] = {}
        """Workers that each of them had when something was given back for it."""

    def see(self, others: Iterable[OtherRun], now_s: float) -> None:
        """All there are now."""
        shown = list(others)
        before, self._others = self._others, {one.name: one for one in shown if one.waiting}
        for one in shown:
            if (was := before.get(one.name)) is not None and was.running < one.running:
                # A place that was given back goes to any of those as poor, not to the one it was meant for.
                self._gave = {name: had for name, had in self._gave.items() if had < was.running}
        for name, one in self._others.items():
            known = before.get(name)
            if known is None or known.running != one.running:
                self._since_s[name] = now_s
                self._gave.pop(name, None)
        for name in before.keys() - self._others:
            del self._since_s[name]
            self._gave.pop(name, None)

    def poorest(self, now_s: float) -> OtherRun | None:
        """Of those that wait, and may be helped; None: there is none."""
        stuck_s = STUCK_PATIENCES * self._patience_s
        helped = [one for name, one in self._others.items() if now_s - self._since_s[name] < stuck_s]
        return min(helped, key=lambda one: (one.running, one.name), default=None)

    def may_have(self, now_s: float) -> int | None:
        """Workers that this run may have, or wait for; None: any number."""
        one = self.poorest(now_s)
        return None if one is None else one.running + 1

    def to_give(self, mine: int, least: int, now_s: float) -> int:
        """How many of ``mine`` to give back now, so that ``least`` stay; told once."""
        one = self.poorest(now_s)
        if one is None or one.name in self._gave or now_s - self._since_s[one.name] < self._patience_s:
            return 0
        number = min((mine - one.running) // 2, one.waiting, mine - least)
        if number <= 0:
            return 0
        self._gave[one.name] = one.running
        return number
