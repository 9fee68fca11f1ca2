"""One parameter server, as a worker sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from elasticflow.step.layout import Layout
from elasticflow.wire.data import DataLink
from elasticflow.wire.messages import FromServer, Lend, Mapped, ServerInfo, Version
from elasticflow.wire.sockets import Socket
from elasticflow_ps.compression import Compression
from elasticflow_ps.loans import Bytes, borrow
from elasticflow_ps.neighbours import FRAME
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.watch import Watched


class Arrived(NamedTuple):
    """A parcel of a version: its arrays as bytes, of which there are none if it is here already."""

    arrays: list[Bytes]
    watched: Watched


class Remote:
    """The connection, what the server holds, and what each has lent the other.

    mapped: the numbers of this worker's blocks that the server reads where they lie. tables: what it has of
    each table of which it has any. early: what came while the worker waited for something else. bases: by
    parcel, see ``ClientState``. asked: who answers the last question is done with so many messages before it.
    """

    def __init__(self, info: ServerInfo, link: DataLink, layout: Layout, compression: Compression) -> None:
        self.name, self.link = info.name, link
        self.greeted = False
        self.asked = 0
        self.parcels: list[Parcel] = parcels_of(layout, info.chunks)
        self.tables = {parcel.table: parcel for parcel in self.parcels if parcel.table is not None}
        self.early: deque[tuple[FromServer, list[memoryview]]] = deque()
        self.mapped: set[int] = set()
        self.bases: dict[int, int] = {}
        self.blocks: dict[int, Bytes] = {}
        """The server's, by number, as far as they can be read here."""
        self._sizes = [[compression.version_bytes(span) for span in parcel.state] for parcel in self.parcels]

    @property
    def sources(self) -> tuple[Socket, Socket]:
        """To be polled."""
        return self.link.socket, self.link.monitor

    def receive(self) -> tuple[FromServer, list[memoryview]] | None:
        """The next message and its arrays' frames; None if there is none yet."""
        return self.early.popleft() if self.early else self.link.receive()

    @property
    def has_more(self) -> bool:
        """Whether there is something to ``receive`` that its sources do not tell of."""
        return bool(self.early) or self.link.more

    def is_late(self, message: FromServer) -> bool:
        """Whether it answers a question before the last: the memory that it names may be another's by now."""
        return isinstance(message, Version) and message.heard < self.asked

    def borrow(self, lend: Lend) -> None:
        """Maps a block of the server's, if it is of this host."""
        # Where it cannot be had, as between containers, arrays travel in frames: it is not said to be mapped.
        with suppress(OSError):
            self.blocks[lend.number] = borrow(lend, writable=False)
            self.link.send(Mapped(number=lend.number))

    def arrived(self, message: FromServer, frames: Sequence[memoryview]) -> Arrived | None:
        """What came with a message; None if that is not what it needs."""
        if not isinstance(message, Version) or message.same:
            return None if frames else Arrived([], Watched((), 0, str))
        if not 0 <= message.parcel < len(self.parcels):
            return None
        sizes, sent = self._sizes[message.parcel], iter(frames)
        places = message.lent or [FRAME] * len(frames)
        try:
            arrays = [
                np.frombuffer(next(sent), np.uint8) if place == FRAME else self._lent(*place, size)
                for place, size in zip(places, sizes, strict=True)
            ]
        except (KeyError, StopIteration, ValueError):
            return None
        whole = [array.nbytes for array in arrays] == sizes
        version = message.version
        watched = Watched(message.checks, version, lambda: f"version {version} of {self.name}")
        return Arrived(arrays, watched) if whole and next(sent, None) is None else None

    def _lent(self, block: int, start: int, num_bytes: int) -> Bytes:
        return self.blocks[block][start : start + num_bytes]
