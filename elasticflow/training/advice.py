"""What a program's ``on_epoch(info)`` is told of an evaluation, and what it may say to it.

    def on_epoch(info):
        if info.metrics["accuracy"] > 0.95:
            return ef.stop("accurate enough")
        if info.epoch == 10:
            return ef.go_on(lr_scale=0.1)

Workers are asked, all that wait for what comes next, and the first answer counts: it has to follow from what
they are told alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from elasticflow.api import HUGE, _require, is_number
from elasticflow.errors import ProgramError
from elasticflow.process.texts import sendable

MOST_CHARS = 500
"""Of a reason, or an error."""
MOST_MEMORY = 16384
"""Characters of what one call may leave to the next, as JSON."""


@dataclass(frozen=True)
class EpochInfo:
    """What there is to know at the end of an epoch, or with ``evaluate_every`` after each evaluation.

    epoch: from 0. step: updates done by then. cost: the mean over the test records. metrics: by name, with
    several sources to test with also ``SOURCE/cost``. learning_rate: of the last step, that of the first
    optimizer. memory: what the call before has left, ``{}`` if there was none.
    """

    epoch: int
    step: int
    cost: float
    metrics: Mapping[str, float]
    learning_rate: float
    memory: Any


class Advice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``on_epoch`` has said.

    stop: why the run ends; "": it goes on. lr: the learning rate from here on, instead of the program's.
    lr_scale: what it is multiplied by. memory: for the next call, as JSON; "": as it was. error: it raised.
    """

    stop: str = ""
    lr: float | None = None
    lr_scale: float = 1.0
    memory: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what ``stop`` and ``go_on`` do not make: this comes from others."""
        rates = (self.lr_scale, *(() if self.lr is None else (self.lr,)))
        if not all(is_number(rate, 0) for rate in rates):
            raise ValueError(f"learning rates {rates}")
        if max(len(self.stop), len(self.error)) > MOST_CHARS or len(self.memory) > MOST_MEMORY:
            raise ValueError("more is said than can be")


class Tuning(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of the program's learning rate.

    scale: what ``on_plateau`` has it multiplied by; factor: what ``on_epoch`` has. lr: instead of it.
    """

    scale: float = 1.0
    factor: float = 1.0
    lr: float | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What workers are asked: of the evaluation that is tick ``tick``. values: cost and metrics by name.

    values, memory: as JSON, which has a way to write what is no number. tuning: of the learning rate by then.
    """

    tick: int
    values: str
    memory: str
    tuning: Tuning


def stop(why: str) -> Advice:
    """The run ends here, done: exit code 0. Raises ProgramError if there is no reason given."""
    text = " ".join(why.split()) if isinstance(why, str) else ""
    _require("stop", bool(text), "why", why, "a text, for the last line of the run")
    return Advice(stop=sendable(text)[:MOST_CHARS])


def go_on(*, lr: float | None = None, lr_scale: float | None = None, memory: Any = None) -> Advice:
    """What comes next is changed: from the next step on.

    lr: the learning rate, instead of what the program has. lr_scale: it is multiplied by that, from now on.
    memory: what the next call finds as ``info.memory``: what JSON can have. Raises ProgramError.
    """
    _require("go_on", lr is None or is_number(lr, 0), "lr", lr, "a number >= 0")
    _require("go_on", lr_scale is None or is_number(lr_scale, 0), "lr_scale", lr_scale, "a number >= 0")
    if lr is not None and lr_scale is not None:
        raise ProgramError("go_on(lr=..., lr_scale=...): give one of them.")
    return Advice(
        lr=None if lr is None else float(lr),
        lr_scale=1.0 if lr_scale is None else float(lr_scale),
        memory="" if memory is None else _as_text(memory),
    )


def clamped(factor: float) -> float:
    """A product of scales, which is to stay a number."""
    return min(factor, HUGE)


def _as_text(memory: Any) -> str:
    try:
        text = json.dumps(memory)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramError(
            f"go_on(memory={memory!r:.80}): it must be what JSON can have, as a dict of numbers: {error}."
        ) from error
    if len(text) > MOST_MEMORY:
        raise ProgramError(
            f"go_on(memory=...): that is {len(text):,} characters as JSON, of which there can be "
            f"{MOST_MEMORY:,}: each checkpoint has it."
        )
    return text
