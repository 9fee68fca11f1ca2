"""Questions for rows of the next version, which wait for it: pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from elasticflow.errors import ProtocolError
from elasticflow.step.rows import EARLY_MOST, Keys
from elasticflow.wire.messages import Read


class RowsQuestion(NamedTuple):
    """A worker asks for rows."""

    worker: str
    message: Read
    keys: Keys


class EarlyReads:
    """By parcel, those that wait."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[RowsQuestion]] = {}
        self._num: Counter[str] = Counter()
        """How many of each worker wait."""
        self._due: list[RowsQuestion] = []
        """Those whose version has just been made."""

    def add(self, question: RowsQuestion) -> None:
        """Raises ProtocolError if the worker has asked too many."""
        version = question.message.version
        if self._num[question.worker] >= EARLY_MOST:
            raise ProtocolError(f"more than {EARLY_MOST} questions for rows of version {version}")
        self._num[question.worker] += 1
        self._waiting.setdefault(question.message.parcel, []).append(question)

    def forget(self, worker: str) -> None:
        """What it asked for over another connection is not to be answered over this one."""
        if self._num.pop(worker, 0):
            waiting = self._waiting.items()
            self._waiting = {parcel: [q for q in asked if q.worker != worker] for parcel, asked in waiting}

    def made(self, parcel: int) -> None:
        """The version that they wait for has come."""
        self._due += self._waiting.pop(parcel, ())

    def take_due(self) -> list[RowsQuestion]:
        """Those that can be answered now."""
        due, self._due = self._due, []
        for question in due:
            self._num[question.worker] -= 1
        return due
