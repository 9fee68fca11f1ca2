"""What evaluations came to, and decided: whoever goes on from a version has to know it. Of one process."""

from __future__ import annotations

from collections.abc import Iterable

from elasticflow.training.standing import WatchStanding

Evaluations = dict[int, tuple[float, ...]]
"""Cost and metrics by tick."""


class Decisions:
    """As far as this process knows: by its assignment, as the leading server, or with copies that it keeps.

    The leading server decides, and tells the master. Both may die at once, so what it has decided goes with
    each copy of its chunks: who holds that knows from what to go on.
    """

    def __init__(self) -> None:
        self._by_tick: dict[int, WatchStanding] = {}
        self.evaluations: Evaluations = {}

    def begin(self, standing: WatchStanding | None) -> None:
        """Another generation: what came after its first version has not happened. None: there are no
        rules."""
        self._by_tick = {} if standing is None else {standing.tick: standing}

    def go_on_from(self, version: int) -> None:
        """What was evaluated later is evaluated again."""
        self.evaluations = {tick: values for tick, values in self.evaluations.items() if tick < version}

    def learn(self, standing: WatchStanding) -> None:
        """One more."""
        self._by_tick[standing.tick] = standing

    @property
    def ticks(self) -> Iterable[int]:
        """Of the evaluations of which something is known."""
        return self._by_tick.keys()

    @property
    def newest(self) -> WatchStanding | None:
        """The last one; None: there are no rules."""
        return self._by_tick[max(self._by_tick)] if self._by_tick else None

    def at(self, version: int) -> WatchStanding | None:
        """The last one before this version."""
        return self._by_tick.get(max((tick for tick in self._by_tick if tick < version), default=version))

    def after(self, ticks: Iterable[int]) -> tuple[WatchStanding, ...]:
        """Those of these ticks that are known."""
        return tuple(self._by_tick[tick] for tick in ticks if tick in self._by_tick)

    def of(self, versions: Iterable[int]) -> tuple[WatchStanding, ...]:
        """What it takes to go on from these."""
        found = {each.tick: each for version in versions if (each := self.at(version)) is not None}
        return tuple(found[tick] for tick in sorted(found))
