"""What the command and the processes that have the model say to each other, as packets of a pipe of theirs.

command -> process   LoadModel, then AskOrder, one at a time
process -> command   ModelReady; ModelAnswers, one for each AskOrder; WorkRefused
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from elasticflow.applying.orders import WorkRefused
from elasticflow.run.settings import MemberSettings

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
"""What requests and answers are written in."""


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    """Load the program and its model. weights: folder of the unpacked checkpoint, of that step."""

    settings: MemberSettings
    weights: str
    step: int


class ModelRequest(msgspec.Struct, frozen=True):
    """Records in one of the formats above, and the format of the answer."""

    body: bytes
    format: str = JSON
    answer: str = JSON


class AskOrder(msgspec.Struct, frozen=True, tag=True):
    """Predict for these requests, all at once where that is possible."""

    requests: tuple[ModelRequest, ...]


class ModelColumn(msgspec.Struct, frozen=True):
    """What a request is to have. shape: of one record; -1: of any length."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ModelReady(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""

    columns: tuple[ModelColumn, ...]


class ModelAnswer(msgspec.Struct, frozen=True):
    """records: how many. fault: whose: "", of nobody; "request", "program"; then ``body`` is a text."""

    body: bytes
    records: int = 0
    fault: str = ""


class ModelAnswers(msgspec.Struct, frozen=True, tag=True):
    """In the order of the requests. seconds: of computing."""

    answers: tuple[ModelAnswer, ...]
    seconds: float


ServingOrder: TypeAlias = LoadModel | AskOrder
ServingWord: TypeAlias = ModelReady | ModelAnswers | WorkRefused
