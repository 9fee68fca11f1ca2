"""A worker's vectors of gradients: each is filled, pushed, and filled again once nobody needs it any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from elasticflow.process import poison
from elasticflow.step.layout import Layout, Rule, Vector, paged_vector
from elasticflow.wire.sending import Tracker
from elasticflow_ps.loans import Block, try_block
from elasticflow_ps.remote import Remote


class VectorPool:
    """lends: they lie in memory that servers of this host may read, where the system gives any."""

    def __init__(self, layout: Layout, *, lends: bool) -> None:
        self._layout, self._lends = layout, lends
        self._dense = [entry for entry in layout.entries if entry.rule is not Rule.ROWS]
        self._spares: list[Vector] = []
        self._sending: deque[tuple[Vector, list[Tracker]]] = deque()
        """Those that may still be on their way, or be read, oldest first."""
        self._blocks: WeakKeyDictionary[Vector, Block] = WeakKeyDictionary()
        """Where vectors lie that servers may read."""

    def spare(self, remotes: Iterable[Remote]) -> Vector:
        """One to be filled. remotes: are told of its memory, if it is new."""
        # Those behind it were sent later, and seldom are free before it.
        while self._sending and all(tracker.done for tracker in self._sending[0][1]):
            self._spares.append(self._sending.popleft()[0])
        if not self._spares:
            return self._new(remotes)
        vector = self._spares.pop()
        if poison.ON:
            poison.poison(*vector.tensors(self._dense))  # and not the padding, which is to stay zero
        return vector

    def _new(self, remotes: Iterable[Remote]) -> Vector:
        block = try_block(self._layout.num_bytes) if self._lends else None
        if block is None:
            return paged_vector(self._layout)
        vector = Vector(self._layout, block.memory, own_pages=True)
        self._blocks[vector] = block
        for remote in remotes:
            if remote.greeted:
                remote.link.send(block.lend())
        return vector

    def lend_all(self, remote: Remote) -> None:
        """To a server that has just greeted."""
        for block in self._blocks.values():
            remote.link.send(block.lend())

    def block_of(self, vector: Vector) -> int:
        """The number of that in which it lies; -1: none that can be lent."""
        block = self._blocks.get(vector)
        return block.number if block else -1

    def give_back(self, *vectors: Vector) -> None:
        """Nobody needs them any more."""
        self._spares.extend(vectors)

    def sent(self, vector: Vector, trackers: list[Tracker]) -> None:
        """It is needed until they are all done."""
        self._sending.append((vector, trackers))

    def forget_sent(self) -> None:
        """Who still sends or reads these may, for ever: they are not filled again."""
        self._sending.clear()
