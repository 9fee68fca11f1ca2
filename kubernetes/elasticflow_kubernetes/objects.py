"""What all objects of an API server have alike, read from its JSON as far as it is looked at."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow_kubernetes.errors import ApiBusy

T = TypeVar("T")


class ObjectOwner(msgspec.Struct):
    """One of ``metadata.ownerReferences``."""

    uid: str


class ObjectMeta(msgspec.Struct, rename="camel"):
    """``metadata``."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 1
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[ObjectOwner] = []
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class ObjectCondition(msgspec.Struct):
    """One of ``status.conditions``."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


class AnyObject(msgspec.Struct):
    """Whatever it is."""

    metadata: ObjectMeta


class ObjectList(msgspec.Struct, Generic[T]):
    """Of one kind."""

    items: list[T]
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class Refusal(msgspec.Struct):
    """What an API server says instead: ``metav1.Status``."""

    message: str = ""
    code: int = 0


def name_of(answer: bytes) -> str:
    """Of one that was just made. Raises ApiBusy where that cannot be read: a list tells more."""
    with contextlib.suppress(msgspec.MsgspecError):
        return from_json(answer, AnyObject).metadata.name
    raise ApiBusy("the answer to what was asked for cannot be read")


def message_of(answer: bytes | str | None) -> str:
    """Why something was refused; "": that is not said."""
    try:
        return from_json(answer or b"{}", Refusal).message
    except msgspec.MsgspecError:
        return str(answer)[:200]
