"""What a command and the processes that work for it say to each other, as packets of a pipe of theirs.

    command -> process   LoadOrder, then PartOrder and SearchOrder, one at a time; SumOrder
    process -> command   ProcessReady; PartAt, before what may end the process; PartDone, SumDone; WorkRefused

Whose end of the pipe is closed has ended: there is nothing to be lost.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from elasticflow import errors
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.run.settings import MemberSettings
from elasticflow.storage.file_ids import FileId

PREDICT, EVALUATE = "predict", "evaluate"


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the program and its model.

    verb: what to do. weights: folder of the unpacked checkpoint. data: path, pattern or URL. To predict:
    keep: columns that are kept; folder: where parts go; ending: of what kind; part_records, batch_records: 0:
    as the run has it. To evaluate: step, of the checkpoint; evaluate_every, of the run.
    """

    verb: str
    settings: MemberSettings
    weights: str
    data: str
    keep: tuple[str, ...] = ()
    folder: str = ""
    ending: str = ""
    part_records: int = 0
    batch_records: int = 0
    step: int = 0
    evaluate_every: int = 0


class PartOrder(msgspec.Struct, frozen=True, tag=True):
    """Do a part. careful: say before each batch which records it has."""

    part: int
    careful: bool = False


class SearchOrder(msgspec.Struct, frozen=True, tag=True):
    """Compute these records of a part one by one, saying which before each; nothing is kept of it."""

    part: int
    first: int
    last: int


class SumOrder(msgspec.Struct, frozen=True, tag=True):
    """Make of the sum over all parts what people see."""

    total: bytes


class ProcessReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded. facts: what decides the bits of what it computes. program: its hash."""

    num_records: int
    num_parts: int
    part_records: int
    batch_records: int
    program: str
    files: tuple[FileId, ...]
    facts: dict[str, str]


class PartAt(msgspec.Struct, frozen=True, tag=True):
    """Records ``first..last`` come next; none: what they gave is written. where: they lie, for people."""

    first: int
    last: int
    where: str


class PartDone(msgspec.Struct, frozen=True, tag=True):
    """value: what came of it, if that is not in a file; of a search nothing."""

    part: int
    value: bytes = b""


class SumDone(msgspec.Struct, frozen=True, tag=True):
    """By name. What is no number is told as text."""

    values: dict[str, float | None]


class WorkRefused(msgspec.Struct, frozen=True, tag=True):
    """It cannot be done, by nobody. kind: name of the error."""

    text: str
    kind: str

    @property
    def error(self) -> ElasticFlowError:
        """To be raised by who hears it."""
        kind = getattr(errors, self.kind, RunError)
        return kind(self.text) if issubclass(kind, ElasticFlowError) else RunError(self.text)


Order: TypeAlias = LoadOrder | PartOrder | SearchOrder | SumOrder
Word: TypeAlias = ProcessReady | PartAt | PartDone | SumDone | WorkRefused
