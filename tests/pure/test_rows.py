"""Keys, buckets, first values, and sums of gradients by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.embedding import Constant, Normal, Uniform
from elasticflow.hashing import GAMMA, hash_ids, mix, mixed
from elasticflow.step.rows import (
    NUM_BUCKETS,
    Grouped,
    Rows,
    bounds,
    first_values,
    grouped,
    ids_of,
    keys_of,
    no_rows,
    table_seed,
)
from elasticflow_ps import native

IdArray = npt.NDArray[np.int64]

IDS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.integers(0, 2**64 - 1)
DIM = 3
FIRST_VALUES = {
    Constant(0.5): ["0x1.0000000000000p-1"] * 6,
    Uniform(-1, 2): [
        "0x1.f1f44c0000000p+0",
        "-0x1.d1cf400000000p-6",
        "0x1.07e7000000000p-5",
        "0x1.e2f77c0000000p-1",
        "-0x1.2b76580000000p-2",
        "-0x1.5cea040000000p-2",
    ],
    Normal(1, 0.5): [
        "0x1.8e5b880000000p+0",
        "0x1.cf2ca80000000p-1",
        "0x1.74a4240000000p+0",
        "0x1.4025680000000p+0",
        "0x1.54e4f80000000p-1",
        "0x1.5f82980000000p-1",
    ],
}
"""Of ids 0, 1 and -5, two numbers each."""
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(IDS, unique=True))
def test_a_key_is_another_name_for_an_id(numbers: list[int]) -> None:
    ids = np.array(numbers, np.int64)
    keys = keys_of(ids)
    assert len(set(keys.tolist())) == len(numbers)
    np.testing.assert_array_equal(ids_of(keys), ids)


def test_keys_are_what_they_always_were() -> None:
    """The first of these is the first number of SplitMix64 with seed 0, as published."""
    assert keys_of(np.array([0, 1, -1, 2**40])).tolist() == [
        0xE220A8397B1DCDAF,
        10451216379200822465,
        16490336266968443936,
        2296115805719413641,
    ]


def test_ids_of_any_width_have_the_same_keys() -> None:
    for dtype in (np.int8, np.uint16, np.int32, np.uint64):
        np.testing.assert_array_equal(keys_of(np.arange(100).astype(dtype)), keys_of(np.arange(100)))
    assert keys_of(np.array([2**64 - 1], np.uint64)) == keys_of(np.array([-1]))
    assert keys_of(np.zeros((2, 3), np.int64)).shape == (2, 3)


def test_keys_of_neighbours_fill_all_buckets_alike() -> None:
    counts = np.bincount((keys_of(np.arange(64_000)) >> np.uint64(58)).astype(int), minlength=NUM_BUCKETS)
    assert counts.min() > 850 and counts.max() < 1150


@pytest.mark.parametrize("group", [grouped, native.grouped])
@given(st.lists(KEYS | st.integers(0, 5) | st.integers(2**64 - 6, 2**64 - 1), max_size=60))
def test_ids_by_key(group: Callable[[IdArray], Grouped], numbers: list[int]) -> None:
    """Also for keys that differ in their lowest bits alone."""
    keys = np.array(numbers, np.uint64)
    found = group(ids_of(keys))
    assert found.keys.tolist() == sorted(set(numbers))
    for key, start, stop in zip(found.keys, found.starts, [*found.starts, len(keys)][1:], strict=True):
        assert found.order[start:stop].tolist() == [at for at, k in enumerate(numbers) if k == key]
    np.testing.assert_array_equal(found.keys[found.places], keys)


@pytest.mark.parametrize("zipf", [1.1, 3.0])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_many_ids_by_key(zipf: float, dtype: type[Any]) -> None:
    ids = (np.random.default_rng(1).zipf(zipf, 50_000) % 100_000).astype(dtype)
    for mine, theirs in zip(native.grouped(ids[::2]), grouped(ids[::2]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@given(st.lists(KEYS, unique=True), st.integers(0, 64), st.integers(0, 64))
def test_buckets_are_ranges_of_keys(numbers: list[int], one: int, other: int) -> None:
    first, stop = sorted((one, other))
    rows = of_dict({key: [number] * DIM for number, key in enumerate(sorted(numbers))})
    part = rows.of(first, stop)
    assert part.keys.tolist() == [key for key in sorted(numbers) if first <= key >> 58 < stop]
    np.testing.assert_array_equal(part.values, rows.values[np.isin(rows.keys, part.keys)])
    assert not len(part.keys) or np.shares_memory(part.values, rows.values)


def test_buckets_meet() -> None:
    limits = [bounds(bucket, bucket + 1) for bucket in range(NUM_BUCKETS)]
    assert limits[0][0] == 0 and limits[-1][1] == 2**64 - 1
    assert all(last + 1 == first for (_, last), (first, _) in zip(limits[:-1], limits[1:], strict=True))


def of_dict(values: dict[int, list[float]]) -> Rows:
    keys = sorted(values)
    array = np.array([values[key] for key in keys], np.float32).reshape(len(keys), DIM)
    return Rows(np.array(keys, np.uint64), array)


def as_dict(rows: Rows) -> dict[int, bytes]:
    assert np.all(rows.keys[1:] > rows.keys[:-1])
    return {int(key): row.tobytes() for key, row in zip(rows.keys, rows.values, strict=True)}


SOME_ROWS = st.dictionaries(
    st.integers(0, 12) | KEYS, st.lists(NUMBERS, min_size=DIM, max_size=DIM), max_size=12
).map(of_dict)


@given(SOME_ROWS, SOME_ROWS)
def test_a_sum_is_that_of_two_dicts(left: Rows, right: Rows) -> None:
    before = as_dict(left), as_dict(right)
    with np.errstate(over="ignore"):
        found = as_dict(left.plus(right))
        expected = {**as_dict(left), **as_dict(right)}
        for key in as_dict(left).keys() & as_dict(right).keys():
            (mine,), (other,) = left.values[left.keys == key], right.values[right.keys == key]
            expected[key] = (mine + other).tobytes()
    assert found == expected
    assert (as_dict(left), as_dict(right)) == before


@given(SOME_ROWS, SOME_ROWS, SOME_ROWS)
def test_which_keys_a_sum_has_depends_on_no_order(one: Rows, two: Rows, three: Rows) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = one.plus(two).plus(three), one.plus(two.plus(three))
    np.testing.assert_array_equal(left.keys, right.keys)


def test_nothing_is_added_to_nothing() -> None:
    assert no_rows(DIM).plus(no_rows(DIM)).values.shape == (0, DIM)
    rows = of_dict({7: [-0.0, 1.0, 2.0]})
    assert as_dict(no_rows(DIM).plus(rows)) == as_dict(rows.plus(no_rows(DIM))) == as_dict(rows)


def test_each_table_of_each_run_has_its_own_seed() -> None:
    assert table_seed(1, "users") == 14696966476000534562
    assert len({table_seed(seed, name) for seed in range(10) for name in ("users", "items")}) == 20


@pytest.mark.parametrize("initializer", FIRST_VALUES, ids=repr)
def test_first_values_are_what_they_always_were(initializer: Constant | Uniform | Normal) -> None:
    """Rows that are not trained are stored nowhere: if these change, so does every model."""
    found = first_values(initializer, table_seed(1, "users"), keys_of(np.array([0, 1, -5])), 2)
    assert found.dtype == np.float32
    assert [float(x).hex() for x in found.reshape(-1)] == FIRST_VALUES[initializer]


@pytest.mark.parametrize("initializer", [Constant(0.5), Uniform(), Normal()], ids=repr)
def test_the_first_value_of_a_row_does_not_depend_on_others(
    initializer: Constant | Uniform | Normal,
) -> None:
    keys = keys_of(np.arange(50))
    whole = first_values(initializer, 3, keys, 5)
    for place in (0, 17, 49):
        np.testing.assert_array_equal(
            first_values(initializer, 3, keys[place : place + 1], 5)[0], whole[place]
        )
    assert first_values(initializer, 3, keys[:0], 5).shape == (0, 5)


def test_first_values_are_spread_as_their_names_say() -> None:
    keys = keys_of(np.arange(20_000))
    uniform = first_values(Uniform(-1, 3), 5, keys, 4)
    assert uniform.min() >= -1 and uniform.max() <= 3
    assert uniform.mean() == pytest.approx(1, abs=0.02) and uniform.std() == pytest.approx(
        4 / 12**0.5, rel=0.02
    )
    normal = first_values(Normal(2, 0.5), 5, keys, 4)
    assert normal.mean() == pytest.approx(2, abs=0.01) and normal.std() == pytest.approx(0.5, rel=0.02)
    assert np.abs(np.corrcoef(normal, rowvar=False) - np.eye(4)).max() < 0.05
    other = first_values(Normal(2, 0.5), 6, keys, 4)
    assert abs(np.corrcoef(normal.reshape(-1), other.reshape(-1))[0, 1]) < 0.05


def test_strings_become_ids() -> None:
    strings = ["", "a", "Zürich", "a" * 50]
    ids = [_hash(string) for string in strings]
    assert ids[:2] == [-780787492076525413, 198367012849983736], "as they always were"
    assert hash_ids(strings).tolist() == ids
    assert hash_ids(np.array(strings, object)).tolist() == ids
    assert hash_ids(np.array([string.encode() for string in strings])).tolist() == ids
    assert hash_ids(np.array([["a", b"a", ""]], object)).tolist() == [[ids[1], ids[1], ids[0]]]
    assert hash_ids(np.array([], "U4")).shape == hash_ids(np.array([], object)).shape == (0,)


def _hash(string: str) -> int:
    value = 0xCBF29CE484222325
    for byte in string.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    gamma = np.uint64(0x9E3779B97F4A7C15)  # keys_of adds it before it mixes
    return int(keys_of((np.array([value], np.uint64) - gamma).view(np.int64)).view(np.int64)[0])


def test_a_string_does_not_mind_its_neighbours() -> None:
    assert hash_ids(["a"])[0] == hash_ids(["a", "much longer"])[0]


@pytest.mark.parametrize("values", [[1, 2], [1.5], np.array(["a", None], object), np.array([1, "a"], object)])
def test_numbers_are_no_strings(values: object) -> None:
    with pytest.raises(TypeError, match="takes strings alone; found an array of"):
        hash_ids(values)  # type: ignore[arg-type]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_one_number_is_mixed_as_arrays_are(seed: int, number: int) -> None:
    words = np.array([(seed + (number + 1) * int(GAMMA)) % 2**64], np.uint64)
    assert mix(seed, number) == int(mixed(words)[0]) >> 1
