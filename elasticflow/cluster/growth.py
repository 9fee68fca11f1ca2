"""How many workers may wait for places, how many may be asked for, and what is rather another run's. Pure.

Like TCP's slow start: see ``sizing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

from elasticflow.cluster.asks import WORKER, A, AskPhase, Asks
from elasticflow.cluster.cooldown import NEVER_S
from elasticflow.cluster.fair import FairShare, OtherRun
from elasticflow.cluster.ways import ClusterWays

MANY = 1 << 30


class Growth(Generic[A]):
    """Of one run. num_min: the least number of workers. patience_s: who finds a free place waits for less."""

    def __init__(self, asks: Asks[Any], ways: ClusterWays, num_min: int, patience_s: float) -> None:
        self._asks: Asks[A] = asks
        self._ways, self._num_min, self._patience_s = ways, num_min, patience_s
        self._ahead = ways.ahead[0]
        self.fair = FairShare(patience_s)
        self.way_until_s = NEVER_S
        """Until then a place that is left is somebody else's."""
        self.most_workers = MANY
        """Places, those of workers included that have left, and are not known to be free."""

    def line(self) -> list[A]:
        """Workers that wait, or may, the lowest number first."""
        return self._asks.of(WORKER, *self._ways.line)

    def overdue(self, now_s: float) -> list[A]:
        """Those in line who have waited for longer than one does who finds a free place."""
        waiting = self._asks.of(WORKER, AskPhase.WAITING)
        return [ask for ask in waiting if now_s - ask.since_s >= self._patience_s]

    def least(self) -> int:
        """How many may wait in any case."""
        return max(0, self._num_min - self._present())

    def most(self) -> int:
        """How many may wait."""
        return max(self.least(), self._ahead)

    def _present(self) -> int:
        return len(self._asks.of(WORKER, AskPhase.RUNNING, AskPhase.ADOPTED))

    # --- what happens ----------------------------------------------------------------------------

    def speed_up(self) -> None:
        """All who waited have found places: there may be more."""
        self._ahead = min(2 * self._ahead, self._ways.ahead[1])

    def slow_down(self) -> None:
        """There is none just now: one stays, as the bell."""
        self._ahead = 1

    def give_way(self, now_s: float) -> None:
        """The cluster takes a member's place for somebody else, who is to get it."""
        self.way_until_s = now_s + self._ways.give_way_s

    # --- what follows ----------------------------------------------------------------------------

    def left(self) -> int:
        """Workers' places that may be asked for beside those that are not free."""
        return self.most_workers - self.num_places

    @property
    def num_places(self) -> int:
        """Asks for workers that are not over, as far as is known."""
        gone = (AskPhase.WANTED, AskPhase.OVER)
        return sum(ask.role == WORKER and ask.phase not in gone for ask in self._asks)

    def room(self, most: int, now_s: float) -> int:
        """How many workers may be asked for now, where so many may wait."""
        gives_way = now_s < self.way_until_s
        if gives_way and self._ways.stands_back:
            return 0
        most = self.least() if gives_way else most
        fair = self.may_wait(now_s)
        waiting = len(self.line())
        return max(0, min((most if fair is None else min(most, fair)) - waiting, self.left()))

    # --- other runs ------------------------------------------------------------------------------

    def may_wait(self, now_s: float) -> int | None:
        """How many may wait while another run of this cluster has fewer workers, and waits; None: any number.

        A service that grants workers shares them itself.
        """
        may_have = self.fair.may_have(now_s) if self.most_workers == MANY else None
        return None if may_have is None else max(self.least(), may_have - self._present())

    def is_held(self, wanted: Iterable[A], now_s: float) -> bool:
        """Whether some are not asked for, or taken back, since another run is poorer."""
        held = any(ask.phase in (AskPhase.WANTED, AskPhase.WITHDRAWN) for ask in wanted)
        most = self.may_wait(now_s)
        return held and most is not None and len(self.line()) >= most

    def share(self, others: Iterable[OtherRun], now_s: float) -> tuple[list[A], list[A]]:
        """Sees other runs. Who is taken back from the line, and who of those that run gives up a place."""
        self.fair.see(others, now_s)
        if (most := self.may_wait(now_s)) is None:
            return [], []
        waiting = [ask for ask in self._asks.of(WORKER, AskPhase.WAITING) if not ask.adopted]
        surplus = len(self.line()) - most
        running = self._asks.of(WORKER, AskPhase.RUNNING)
        number = self.fair.to_give(len(running), self._num_min, now_s)
        newest = sorted(running, key=lambda ask: ask.since_s)[len(running) - number :]
        return list(reversed(waiting[-surplus:] if surplus > 0 else [])), newest

    def fair_words(self, now_s: float) -> str:
        """Why this run does not grow; "": nobody is in the way."""
        one = self.fair.poorest(now_s)
        if one is None or self.most_workers != MANY:
            return ""
        return f"run {one.name} waits for workers, and has {one.running}"
