"""What a sweep chooses from: ``lr=1e-4..1e-1:log,width=64|128``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from elasticflow.errors import ConfigError
from elasticflow.program.arguments import parsed

Value: TypeAlias = str | int | float | bool
"""What one trial is given."""


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, both included; whole ones if both are. step: None: any."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    def __str__(self) -> str:
        rule = ":log" if self.log else f":{self.step!r}" if self.step is not None else ""
        return f"{self.low!r}..{self.high!r}{rule}"


class OneOf(NamedTuple):
    """One of these."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return "|".join(map(str, self.values))


Space: TypeAlias = dict[str, Range | OneOf]
"""By name of an argument of the program, or of a setting."""


def read_space(texts: Sequence[str]) -> Space:
    """From ``--space``, which may be given several times. Raises ConfigError."""
    space: Space = {}
    for text in (each.strip() for given in texts for each in given.split(",")):
        name, equals, rule = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not rule:
            raise _wrong(text, "is no NAME=RANGE and no NAME=VALUE|VALUE")
        if name in space:
            raise _wrong(text, f"{name} is in the space twice")
        space[name] = _range(text, rule) if ".." in rule else _choice(text, rule)
    return space


def as_text(space: Space) -> str:
    """As ``--space`` takes it."""
    return ",".join(f"{name}={rule}" for name, rule in space.items())


def _range(text: str, rule: str) -> Range:
    ends, colon, how = rule.partition(":")
    low, _, high = ends.partition("..")
    first, last = _number(text, low), _number(text, high)
    whole = isinstance(first, int) and isinstance(last, int)
    if not whole:
        first, last = float(first), float(last)
    if not first < last:
        raise _wrong(text, "its first number must be less than its last")
    if how == "log":
        if first <= 0:
            raise _wrong(text, "on a logarithmic scale all numbers are greater than 0")
        return Range(first, last, log=True)
    if not colon:
        return Range(first, last)
    step = _number(text, how)
    if step <= 0 or step > last - first:
        raise _wrong(text, f"a step of {how} does not fit into it")
    if whole and not isinstance(step, int):
        raise _wrong(text, f"its numbers are whole, and a step of {how} is not")
    return Range(first, last, step=step if whole else float(step))


def _choice(text: str, rule: str) -> OneOf:
    try:
        values = [parsed([f"value={each.strip()}"])["value"] for each in rule.split("|")]
    except ConfigError:
        values = []
    if not values or not all(map(_can_be_chosen, values)):
        raise _wrong(text, "a choice is among numbers, words, true and false")
    if len(set(values)) < len(values):  # as Optuna compares them: 1, 1.0 and true are one
        raise _wrong(text, "a choice has each value once")
    return OneOf(tuple(values))


def _can_be_chosen(value: object) -> bool:
    return math.isfinite(value) if isinstance(value, float) else value != "" and not isinstance(value, list)


def _number(text: str, number: str) -> int | float:
    for kind in (int, float):
        try:
            value = kind(number)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    raise _wrong(text, f"{number!r} is no number")


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"--space {text}: {why}; such as lr=1e-4..1e-1:log, layers=1..4, drop=0..0.5:0.1 or width=64|128."
    )
