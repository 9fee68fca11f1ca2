"""What a program may write as an embedding table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import elasticflow as ef
from elasticflow.embedding import TableSpec
from elasticflow.errors import ProgramError


def test_a_table_says_all_that_a_server_must_know() -> None:
    assert ef.Embedding(None, 8).spec == TableSpec(
        rows=None, dim=8, initializer=ef.Uniform(), optimizer=None, min_count=1, evict_after_steps=0
    )
    spec = ef.Embedding(
        5, 1, initializer=ef.Normal(1, 2), optimizer=ef.Ftrl(l1=0.1), min_count=3, evict_after_steps=9
    ).spec
    assert msgspec.json.decode(msgspec.json.encode(spec), type=TableSpec) == spec


BAD: dict[str, dict[str, Any]] = {
    "rows=0.: rows must be": {"rows": 0},
    "rows=-3.: rows must be": {"rows": -3},
    "rows=2.5.: rows must be": {"rows": 2.5},
    f"rows={10**30}.: rows must be a whole number from 1 to": {"rows": 10**30},
    f"rows={1 << 60}.: rows must be": {"rows": 1 << 60},
    "rows=True.: rows must be": {"rows": True},
    "dim=0.: dim must be": {"dim": 0},
    "dim=65537.: dim must be": {"dim": 65537},
    "initializer=0.5.: initializer must be": {"initializer": 0.5},
    "optimizer='sgd'.: optimizer must be": {"optimizer": "sgd"},
    "from norms over a whole tensor": {"optimizer": ef.LAMB()},
    "clip_norm is for all gradients together": {"optimizer": ef.SGD(lr=0.1, clip_norm=1.0)},
    "min_count=0.: min_count must be": {"min_count": 0},
    "evict_after_steps=-1.: evict_after_steps must be": {"evict_after_steps": -1},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_tables(message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        ef.Embedding(**{"rows": 5, "dim": 4, **BAD[message]})


@pytest.mark.parametrize(
    "make",
    [
        lambda: ef.Uniform(1, 0),
        lambda: ef.Uniform(float("nan"), 1),
        lambda: ef.Normal(0, -1),
        lambda: ef.Normal(float("inf")),
        lambda: ef.Constant(10**40),
        lambda: ef.Uniform(-1e300, 0),
        lambda: ef.Constant("0"),  # type: ignore[arg-type]
    ],
)
def test_bad_initializers(make: Any) -> None:
    with pytest.raises(ProgramError, match="must be"):
        make()


def test_a_table_is_called_in_forward_alone() -> None:
    table = ef.Embedding(5, 4)
    with pytest.raises(ProgramError, match=r"within forward\(\) and metrics\(\) alone"):
        table([1, 2])
    table.bind(lambda *arguments, **named: (arguments, named))
    assert table([1], combine="sum") == (([1],), {"combine": "sum", "offsets": None, "padding": None})
    table.bind(None)
    with pytest.raises(ProgramError, match="alone"):
        table([1, 2])


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("combine='max'.: combine must be", {"combine": "max"}),
        ("offsets='given'.: offsets must be left out", {"offsets": [0]}),
        ("padding=1.5.: padding must be", {"padding": 1.5}),
        ("padding=True.: padding must be", {"padding": True}),
    ],
)
def test_bad_calls(message: str, named: dict[str, Any]) -> None:
    table = ef.Embedding(5, 4)
    table.bind(lambda *_, **__: None)
    with pytest.raises(ProgramError, match=message):
        table([1], **named)
