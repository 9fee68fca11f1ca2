"""What comes to a server with a message: frames as what its parcel needs, compared with what was lent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from elasticflow.errors import ProtocolError
from elasticflow.step.rows import Rows
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.step.slices import Node
from elasticflow.wire.messages import Assignment, Push
from elasticflow_ps.compression import Compression
from elasticflow_ps.neighbours import Neighbours
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.store import Sum, parse
from elasticflow_ps.tables import parse_rows
from elasticflow_ps.watch import Watched


class Incoming:
    """To one server in one generation. Methods raise ProtocolError for what makes no sense.

    name: the server's, for who has to read that bits are wrong.
    """

    def __init__(
        self,
        name: str,
        assignment: Assignment,
        parcels: Sequence[Parcel],
        neighbours: Neighbours,
        compression: Compression,
    ) -> None:
        self._name, self._parcels = name, parcels
        self._schedule: Schedule = assignment.schedule
        self._specs = assignment.spec.tables
        self._neighbours, self._compression = neighbours, compression

    def parcel(self, number: int) -> Parcel:
        """That with this number."""
        if not 0 <= number < len(self._parcels):
            raise ProtocolError(f"there is no parcel {number}")
        return self._parcels[number]

    def initial(self, number: int, frames: Sequence[memoryview]) -> Sum:
        """A parcel's first values."""
        return parse(self.parcel(number).state, frames)

    def pushed(self, worker: str, push: Push, frames: Sequence[memoryview]) -> Sum | Rows | None:
        """What a push carries, or says where it lies; None: its node holds no records."""
        parcel = self.parcel(push.parcel)
        if not 0 <= push.tick < self._schedule.total_ticks:
            raise ProtocolError(f"there is no tick {push.tick}")
        work = self._schedule.at(push.tick)
        kind, spans = work.kind, parcel.pushed(work.kind, work.epoch, work.stage)
        watched = Watched(push.checks, push.tick, partial(self._words_of, worker, push))
        if push.lent < 0:
            watched.compare(frames, spans, self._name)
        if parcel.table is not None and kind is Kind.TRAIN and not push.empty:
            return parse_rows(parcel, self._specs[parcel.table].dim, frames)
        value = self._compression.sum_of(() if push.empty or push.lent >= 0 else spans, frames)
        if push.lent >= 0:
            # Compared when it is used up, not now: until then the worker may write where it must not.
            vector = self._neighbours.pushed(worker, push.lent)
            arrays = [span.view(vector) for span in spans]
            value = Sum(arrays, spans, partial(watched.compare, arrays, spans, self._name))
        return None if push.empty else value

    def _words_of(self, worker: str, push: Push) -> str:
        node = Node(push.level, push.index)
        step = self._schedule.at(push.tick).step
        return f"what {worker} pushed in step {step} for slices {node.first}..{node.stop - 1}"
