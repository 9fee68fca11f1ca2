"""Numbers in messages that cannot be meant."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from elasticflow.errors import ProtocolError
from elasticflow.wire.messages import Clip, Norms, Progress

TELL_OF_THE_MODEL = (Progress, Norms, Clip)
"""Messages whose fractions come out of the model."""
WHOLE = 2**53
"""Whole numbers in messages are below; ticks, rows and places are, by far."""

_TEXTS = frozenset({str, bytes, bool})
"""In which there are no numbers."""

BAD = (ProtocolError, msgspec.MsgspecError, ValueError, RecursionError)
"""What bytes that are no message are found out by. RecursionError: by lists in lists in lists."""


def check(message: msgspec.Struct) -> None:
    """Raises ProtocolError if there is a number in it that none of ours has: NaN, infinite or huge.

    A NaN would be passed on to the model, and a huge number to something that allocates. What tells of
    costs and gradients may hold any float: a model that diverges has such numbers.
    """
    _check_all(msgspec.structs.astuple(message), not isinstance(message, TELL_OF_THE_MODEL))


def _check_all(values: tuple[Any, ...], finite: bool) -> None:
    for value in values:
        kind = type(value)
        if kind in _TEXTS or value is None:
            continue
        if kind is int:
            if not -1 <= value < WHOLE:
                raise ProtocolError(f"a whole number that cannot be meant: {value}")
        elif kind is float:
            if finite and not math.isfinite(value):
                raise ProtocolError(f"a number that is none: {value}")
        elif kind is tuple:
            if value:
                _check_all(value, finite)
        elif kind is dict:
            _check_all((*value, *value.values()), finite)
        elif isinstance(value, msgspec.Struct):
            check(value)
