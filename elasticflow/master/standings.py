"""What evaluations have decided, as far as the master has to know it: pure.

A generation of servers cannot go on from a version unless it is known what the evaluations before it have
decided, so those of all versions that there may be to go on from are kept: of the newest commit, and later.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticflow.step.schedule import Schedule
from elasticflow.training.standing import WatchRules, WatchStanding

NOTHING = Schedule(num_records=1, num_test=0, batch_size=1, num_slices=1, epochs=1)
"""As long as the program is not known."""


class Standings:
    """known: by the manifest that is gone on from, and the master before this one."""

    def __init__(self, known: Iterable[WatchStanding] = ()) -> None:
        self._by_tick = {standing.tick: standing for standing in known}
        self._rules, self._schedule = WatchRules(), NOTHING
        self._newest = max(self._by_tick, default=-1)

    @property
    def all(self) -> tuple[WatchStanding, ...]:
        """For the master after this one."""
        return tuple(self._by_tick.values())

    @property
    def newest(self) -> WatchStanding | None:
        return self._by_tick[max(self._by_tick)] if self._by_tick else None

    def go_by(self, rules: WatchRules, schedule: Schedule) -> None:
        """The program's, once it is known."""
        self._rules, self._schedule = rules, schedule

    def begin(self, version: int) -> None:
        """A run begins at this version, or goes on there, maybe by other rules than before."""
        tick = self._schedule.last_evaluation(version)
        found = self._by_tick.get(tick, WatchStanding(rules=self._rules, tick=tick))
        # Of versions that servers have in memory, which a master that knew nothing of the program has heard.
        later = {t: each for t, each in self._by_tick.items() if t > tick and each.rules == self._rules}
        self._by_tick = {tick: found.by(self._rules), **later} if self._rules.any else {}

    def learn(self, standing: WatchStanding) -> bool:
        """One more. Returns whether it is of an evaluation of which nothing was known before."""
        news = standing.tick > self._newest
        self._newest = max(self._newest, standing.tick)
        self._by_tick[standing.tick] = standing
        return news

    def hear(self, standing: WatchStanding) -> None:
        """By who holds such a version: the leading server may have died before it told this master of it."""
        known = self._by_tick.get(standing.tick)
        if known is None or known.asks:
            self._by_tick[standing.tick] = standing

    def at(self, version: int) -> WatchStanding | None:
        """That of the last evaluation before this version; None: it is not known, or there are no rules."""
        return self._by_tick.get(self._schedule.last_evaluation(version))

    def know(self, version: int) -> bool:
        """Whether all is known that it takes to go on from this version."""
        return not self._rules.any or self.at(version) is not None

    def stop(self, version: int) -> bool:
        """Whether the run ends with this version, by what the evaluation has decided that made it."""
        standing = self.at(version)
        return standing is not None and standing.stops(version)

    def go_back_to(self, version: int) -> None:
        """What came after it has not happened."""
        self._by_tick = {tick: each for tick, each in self._by_tick.items() if tick < version}

    def settle(self, version: int) -> None:
        """There is a commit of this version: nobody goes back further."""
        tick = self._schedule.last_evaluation(version)
        self._by_tick = {known: each for known, each in self._by_tick.items() if known >= tick}
