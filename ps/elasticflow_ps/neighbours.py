"""Workers on this server's host: they push and pull through memory, and messages only say where.

A worker lends the vectors that it fills with gradients, a server the blocks that its versions lie in. Either
uses what it was lent once it has said so (``Mapped``), and until then, or where it cannot, arrays travel as
they do between hosts. A worker fills a vector again when it has the next version, for which the servers have
used it up; a server writes where a version was once all who were told of it have a later one, or are dead.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Layout, Vector
from elasticflow.wire.messages import Lend, Mapped
from elasticflow_ps.arena import ArenaPlace
from elasticflow_ps.loans import borrow
from elasticflow_ps.ways import Ways

MOST_VECTORS = 64
"""A worker has one for each level of the tree over its slices, and what is on its way."""
FRAME = (-1, 0)
"""Stands for an array that travels in a frame."""


class Neighbour:
    """One process. adopted: the version that it has: it reads what it was told of later ones alone.

    Raises OSError if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.adopted = -1
        self.vectors: dict[int, Vector] = {}
        self.offered: set[int] = set()
        self.mapped: set[int] = set()
        self._pidfd = os.pidfd_open(pid)
        self._over = False

    def part(self) -> None:
        """It has let go of all that it was told of."""
        if not self._over:
            self._over = True
            os.close(self._pidfd)

    def has_parted(self) -> bool:
        """Whether it has, or is dead."""
        if not self._over:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if poller.poll(0):
                self.part()
        return self._over

    def __del__(self) -> None:
        if hasattr(self, "_over"):
            self.part()


class NeighbourReading:
    """A ``Tracker``: a neighbour may be reading arrays of a version."""

    def __init__(self, neighbour: Neighbour, version: int) -> None:
        self._neighbour, self._version = neighbour, version

    @property
    def done(self) -> bool:
        return self._neighbour.adopted >= self._version or self._neighbour.has_parted()


class Neighbours:
    """Those of one server, by worker. ``layout`` is that of the generation's vectors."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._here: dict[str, Neighbour] = {}
        self._former: list[Neighbour] = []
        """Of connections that are closed: they may still be reading, until they come again."""
        self.layout = Layout(())

    def enter(self, layout: Layout) -> None:
        """Another generation: all connections are new."""
        for worker in list(self._here):
            self.closed(worker)
        self.layout = layout

    def closed(self, worker: str) -> None:
        """Its connection has closed: nothing of its memory is needed any more."""
        if worker in self._here:
            neighbour = self._here.pop(worker)
            neighbour.vectors.clear()
            self._former = [each for each in (*self._former, neighbour) if not each.has_parted()]

    def receive(self, worker: str, message: Lend | Mapped) -> None:
        """Raises ProtocolError for what cannot be meant."""
        if isinstance(message, Lend):
            self._take(worker, message)
        elif worker in self._here and message.number in self._here[worker].offered:
            self._here[worker].mapped.add(message.number)
        else:
            raise ProtocolError(f"{worker} has mapped {message.number}, which it was not lent")

    def _take(self, worker: str, lend: Lend) -> None:
        neighbour = self._here.get(worker)
        if neighbour and (neighbour.pid != lend.pid or len(neighbour.vectors) >= MOST_VECTORS):
            raise ProtocolError(f"{worker} lends from another process, or too much")
        try:
            known = neighbour or Neighbour(lend.pid)
            memory = borrow(lend, writable=True)  # sums are made in place
        # OverflowError: a process number that is none.
        except (OSError, OverflowError):
            return  # of another host, or out of reach
        if memory.nbytes != self.layout.num_bytes:
            raise ProtocolError(f"{worker} lends {memory.nbytes} bytes, not {self.layout.num_bytes}")
        known.vectors[lend.number] = Vector(self.layout, memory)
        if neighbour is None:
            self._here[worker] = known
            # Who lends again has let go of all that it was told before.
            for former in self._former:
                if former.pid == lend.pid:
                    former.part()
            self._former = [each for each in self._former if not each.has_parted()]
        self._ways.answer(worker, Mapped(number=lend.number))

    def has(self, worker: str, version: int) -> None:
        """A worker has this version, and will read none but later ones, or one that it asks for again."""
        if neighbour := self._here.get(worker):
            neighbour.adopted = version

    def pushed(self, worker: str, number: int) -> Vector:
        """The worker's vector in which lies what a push carries. Raises ProtocolError if there is none."""
        vector = self._here[worker].vectors.get(number) if worker in self._here else None
        if vector is None:
            raise ProtocolError(f"{worker} pushes what lies in {number}, which it has not lent")
        return vector

    def lend(self, worker: str, places: Sequence[ArenaPlace | None]) -> tuple[tuple[int, int], ...]:
        """(number of the block, first byte in it) of each array, ``FRAME`` for those that must be sent.

        Empty if all must be. Lends blocks that the worker does not know yet, for the next time.
        """
        neighbour = self._here.get(worker)
        if neighbour is None:
            return ()
        found = []
        for place in places:
            if place and place.block.number in neighbour.mapped:
                found.append((place.block.number, place.start))
                continue
            found.append(FRAME)
            if place and place.block.number not in neighbour.offered:
                neighbour.offered.add(place.block.number)
                self._ways.answer(worker, place.block.lend())
        return () if all(each == FRAME for each in found) else tuple(found)

    def reading(self, worker: str, version: int) -> NeighbourReading:
        """Is done when the worker has read this version. For one that was just told where it lies."""
        return NeighbourReading(self._here[worker], version)
