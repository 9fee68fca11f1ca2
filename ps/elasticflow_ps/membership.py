"""Where a server stands with the master: what it was told, so that the next master can be told again."""

from __future__ import annotations

from collections.abc import Callable

from elasticflow.wire.messages import Join, Lost, Offer, Ready, ToMaster
from elasticflow_ps.decisions import Decisions
from elasticflow_ps.snapshots import Copy


class Membership:
    """Of a process, through all its generations. send: takes messages to the master.

    generation: of the last assignment that was taken up. halted: the one to come, 0: none. tick: the last
    version of the generation before. ready: in this one, whether its chunks are there.
    """

    def __init__(self, join: Join, send: Callable[[ToMaster], None]) -> None:
        self.generation = self.halted = self.tick = 0
        self.ready = False
        self._join, self._send = join, send
        self._lost: set[str] = set()

    def join(self) -> None:
        """Says who this is."""
        self._send(self._join)

    def is_news(self, generation: int) -> bool:
        """Whether an order for this generation is none from before the last assignment, or the last halt."""
        return generation > self.generation and generation >= self.halted

    def begin(self, generation: int, tick: int) -> None:
        """An assignment is taken up."""
        self.generation, self.halted, self.tick = generation, 0, tick
        self.ready = False
        self._lost.clear()

    def offer(self, generation: int, held: set[Copy], decisions: Decisions) -> None:
        """The server has halted, and holds these copies."""
        self.halted, self.ready = generation, False
        standings = decisions.of(version for _, version in held)
        self._send(
            Offer(name=self._join.name, generation=generation, held=tuple(sorted(held)), standings=standings)
        )

    def tell_ready(self) -> None:
        """Its chunks are there."""
        self.ready = True
        self._send(Ready(name=self._join.name, generation=self.generation))

    def tell_lost(self, member: str) -> None:
        """Once the server is halted, connections close because the others have gone on already."""
        if not self.halted and member not in self._lost:
            self._lost.add(member)
            self._send(Lost(name=self._join.name, member=member))

    def repeat(self) -> None:
        """Tells another master of a generation that goes on."""
        for member in sorted(self._lost):
            self._send(Lost(name=self._join.name, member=member))
        if self.ready:
            self.tell_ready()
