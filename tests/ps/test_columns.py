"""Columns in C: the bits that NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.data import Pad
from elasticflow.data.blocks import _move
from elasticflow.data.ragged import Ragged
from elasticflow.hashing import hash_texts, hash_with_numpy
from elasticflow_ps import columns

pytestmark = pytest.mark.skipif(not columns.available(), reason="no C compiler when this was installed")


@settings(max_examples=200, database=None)
@given(st.lists(st.binary(max_size=9), max_size=20))
def test_ids_of_texts(texts: list[bytes]) -> None:
    ends = np.cumsum([0, *map(len, texts)])
    data = np.frombuffer(b"".join(texts), np.uint8)
    assert hash_texts(data, ends[:-1], ends[1:]).tolist() == (
        hash_with_numpy(data, ends[:-1], ends[1:]).tolist()
    )


def of_both(monkeypatch: pytest.MonkeyPatch, make):
    in_c = make()
    with monkeypatch.context() as patch:
        patch.setattr(columns, "_lib", None)
        return in_c, make()


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("pad", [Pad(), Pad(value=7, multiple=4, side="left"), Pad(longest=2)])
def test_records_of_different_lengths(monkeypatch, shape: tuple[int, ...], pad: Pad) -> None:
    chance = np.random.default_rng(0)
    lengths = chance.integers(0, 6, 50)
    source = Ragged(
        chance.integers(0, 99, (lengths.sum(), *shape)), np.concatenate([[0], np.cumsum(lengths)])
    )
    order = chance.permutation(80)

    def made() -> list[np.ndarray]:
        parts = [
            source.take(chance_of.integers(0, 50, 40)) for chance_of in map(np.random.default_rng, (1, 2))
        ]
        joined = Ragged.joined(parts, order)
        return [joined.values, joined.starts, *joined.padded(pad), *joined[5:9].padded(pad)]

    for mine, theirs in zip(*of_both(monkeypatch, made), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)


@pytest.mark.parametrize("dtype", ["float64", "U5", np.dtype([("a", "i8"), ("b", "i1")]), object])
def test_records_of_one_size(monkeypatch, dtype) -> None:
    source = np.arange(60).astype("U5" if dtype == "U5" else "i8").reshape(30, 2)
    source = np.zeros((30, 2), dtype) if isinstance(dtype, np.dtype) else source.astype(dtype)
    if isinstance(dtype, np.dtype):
        source["a"], source["b"] = np.arange(60).reshape(30, 2), 3
    numbers, places = np.array([3, 29, 3, 0]), np.array([1, 0, 3, 2])

    def made() -> np.ndarray:
        target = np.empty((4, 2), dtype)
        _move(source, numbers, places, target)
        return target

    mine, theirs = of_both(monkeypatch, made)
    assert mine.tolist() == theirs.tolist() == source[[29, 3, 0, 3]].tolist()


def test_texts_of_another_width_take_the_way_of_numpy() -> None:
    target = np.empty(2, "U5")
    _move(np.array(["a", "bc"]), np.array([1, 0]), np.array([0, 1]), target)
    assert target.tolist() == ["bc", "a"]
