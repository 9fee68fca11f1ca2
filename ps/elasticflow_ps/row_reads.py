"""Workers read rows of a server's tables: of this version, or the one before, or early of the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elasticflow.embedding import TableSpec
from elasticflow.errors import ProtocolError
from elasticflow.step.rows import blocks
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Read, RowsRead
from elasticflow_ps.early import EarlyReads, RowsQuestion
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.tables import Tables, parse_keys
from elasticflow_ps.ways import Ways


class RowReads:
    """Answers them. Asynchronously rows are read as they are by now: who has all other parcels of the next
    version asks for it as well."""

    def __init__(self, schedule: Schedule, specs: Sequence[TableSpec], tables: Tables, ways: Ways) -> None:
        self._schedule, self._specs, self._tables, self._ways = schedule, specs, tables, ways
        self._early = EarlyReads()

    def take(self, worker: str, parcel: Parcel, message: Read, frames: Sequence[memoryview]) -> None:
        """Raises ProtocolError if the question makes no sense."""
        table = self._tables.get(parcel.number)
        if table is None:
            raise ProtocolError(f"there are no rows in parcel {message.parcel}")
        if not 0 <= message.version <= table.version + 1:
            raise ProtocolError(f"there are no rows of version {message.version} yet")
        question = RowsQuestion(worker, message, parse_keys(parcel, frames))
        if message.version > table.version and not self._schedule.asynchronous:
            self._early.add(question)
        else:
            self._answer(question, parcel)

    def forget(self, worker: str) -> None:
        """It has another connection, or none: what it asked for over the last one is not answered."""
        self._early.forget(worker)

    def made(self, parcel: Parcel) -> None:
        """The next version of a parcel is about to be made."""
        self._early.made(parcel.number)

    def answer_due(self, parcels: Sequence[Parcel]) -> None:
        """Answers what waited for versions that have been made."""
        for question in self._early.take_due():
            self._answer(question, parcels[question.message.parcel])

    def _answer(self, question: RowsQuestion, parcel: Parcel) -> None:
        worker, message, keys = question
        table = self._tables[parcel.number]
        assert parcel.table is not None
        if message.version < table.version - 1:
            self._ways.answer(worker, RowsRead(number=message.number, gone=True))
            return
        values = np.empty((len(keys), self._specs[parcel.table].dim), np.float32)
        now = table.version if self._schedule.asynchronous else message.version
        table.read(keys, now, self._schedule.steps_before(message.version) + 1, values)
        cut = [values[block] for block in blocks(*values.shape)]
        self._ways.answer(worker, RowsRead(number=message.number), cut)
