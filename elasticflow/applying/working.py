"""The processes that compute parts. See ``orders`` for what is said in the pipe that each has.

``python -m elasticflow.applying.working``: see ``life``.
"""

from __future__ import annotations

import contextlib

import msgspec

from elasticflow.applying.life import Pipe, live
from elasticflow.applying.orders import (
    PREDICT,
    LoadOrder,
    Order,
    PartAt,
    PartDone,
    PartOrder,
    ProcessReady,
    SearchOrder,
    SumDone,
    SumOrder,
    Word,
)
from elasticflow.applying.part_work import EvaluateWork, PredictWork
from elasticflow.applying.sources import place_of
from elasticflow.errors import ElasticFlowError, ProgramError
from elasticflow.process.decoding import from_msgpack
from elasticflow.process.fingerprint import fingerprint
from elasticflow.program.copy import gather
from elasticflow.storage.file_ids import folded


class _Working:
    """Until the command closes the pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def run(self) -> None:
        order = self._hear()
        assert isinstance(order, LoadOrder)
        program = _hash_of(order)
        self._work = PredictWork(order) if order.verb == PREDICT else EvaluateWork(order)
        work = self._work
        if _hash_of(order) != program:
            raise ProgramError(f"{order.settings.program}: was changed while it was loaded; try again.")
        self._say(
            ProcessReady(
                num_records=work.source.num_rows,
                num_parts=work.num_parts,
                part_records=work.part_records,
                batch_records=work.batch_records,
                program=program,
                files=folded(work.source.files),
                facts=fingerprint(order.settings.threads, work.facts),
            )
        )
        while True:
            self._obey(self._hear())

    def _obey(self, order: Order) -> None:
        if isinstance(order, PartOrder):
            self._say(PartDone(order.part, self._work.do(order.part, self._at if order.careful else _unsaid)))
        elif isinstance(order, SearchOrder):
            with contextlib.suppress(
                ElasticFlowError
            ):  # it lives: what the program raises the part will tell
                self._work.search(order.first, order.last, self._at)
            self._say(PartDone(order.part))
        elif isinstance(order, SumOrder):
            assert isinstance(self._work, EvaluateWork)
            self._say(SumDone(self._work.summed(order.total)))

    def _at(self, first: int, last: int) -> None:
        self._say(PartAt(first, last, place_of(self._work.source, first) if last > first else ""))

    def _say(self, word: Word) -> None:
        self._pipe.send_bytes(msgspec.msgpack.encode(word))

    def _hear(self) -> Order:
        """Raises EOFError once there is no more to be done."""
        order: Order = from_msgpack(self._pipe.recv_bytes(), Order)
        return order


def _hash_of(order: LoadOrder) -> str:
    """Of the program as it is now; of a run's own, as it always was."""
    return order.settings.program_sha256 or gather(order.settings.program).sha256


def _unsaid(first: int, last: int) -> None:
    pass


if __name__ == "__main__":
    live(lambda pipe: _Working(pipe).run())
