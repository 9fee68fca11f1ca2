"""What a sweep may choose from, as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.errors import ConfigError
from elasticflow.sweep.space import OneOf, Range, Space, as_text, read_space

NAMES = some.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
WORDS = some.from_regex(r"[a-df-km-z][a-z0-9]{3,6}", fullmatch=True).filter(
    lambda word: word not in ("false",)
)
VALUES = WORDS | some.integers() | some.booleans() | some.floats(allow_nan=False, allow_infinity=False)


@some.composite
def ranges(draw: some.DrawFn) -> Range:
    numbers = some.integers(1, 10**6) if draw(some.booleans()) else some.floats(1e-9, 1e9)
    low, high = sorted(draw(some.lists(numbers, min_size=2, max_size=2, unique=True)))
    how = draw(some.sampled_from(["", "log", "step"]))
    step = (high - low) / 2 if isinstance(low, float) else 1
    return Range(low, high, log=how == "log", step=step if how == "step" else None)


def choices() -> some.SearchStrategy[OneOf]:
    return some.lists(VALUES, min_size=1, max_size=5, unique=True).map(lambda found: OneOf(tuple(found)))


@given(some.dictionaries(NAMES, ranges() | choices(), min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(space: Space) -> None:
    assert read_space([as_text(space)]) == space
    assert list(map(repr, read_space([as_text(space)]).values())) == list(map(repr, space.values()))


def test_what_people_write() -> None:
    assert read_space(["lr=1e-4..1e-1:log, width=64|128", "drop=0..0.5:0.1,layers=1..4,on=true|no"]) == {
        "lr": Range(1e-4, 1e-1, log=True),
        "width": OneOf((64, 128)),
        "drop": Range(0.0, 0.5, step=0.1),
        "layers": Range(1, 4),
        "on": OneOf((True, False)),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr", "NAME=RANGE"),
        ("l-r=1|2", "NAME=RANGE"),
        ("lr=", "NAME=RANGE"),
        ("lr=1..", "is no number"),
        ("lr=1..nan", "is no number"),
        ("lr=2..1", "less than"),
        ("lr=1..1", "less than"),
        ("lr=0..1:log", "greater than 0"),
        ("lr=0..1:fast", "is no number"),
        ("lr=0..1:2", "does not fit"),
        ("lr=0..4:0.5", "are whole"),
        ("lr=1|1", "each value once"),
        ("on=true|1", "each value once"),
        ("lr=1|2|1.0", "each value once"),
        ("lr=[1]|2", "numbers, words"),
        ("lr=0.1|nan", "numbers, words"),
        ("lr=0.1|-inf", "numbers, words"),
        ("kind=null|relu", "numbers, words"),
        ("lr=1|2,lr=3|4", "twice"),
    ],
)
def test_what_makes_no_sense_is_told(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        read_space([text])
    assert "such as lr=1e-4..1e-1:log" in str(told.value)
