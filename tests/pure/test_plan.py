"""Who computes which slices: all of them, once, and so that all end together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticflow.master.plan import SAME_SPEED, Speed, make_plan, unevenness
from elasticflow.step.slices import cover

NUM_SLICES = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 10.0))


def speeds(*slice_s: float) -> list[Speed]:
    return [Speed(f"worker-{number}", each) for number, each in enumerate(slice_s)]


def counts(slice_s: list[float], num_slices: int) -> list[int]:
    """Slices of each worker."""
    shares = {share.worker: share.stop - share.first for share in make_plan(speeds(*slice_s), num_slices)}
    return [shares.get(speed.worker, 0) for speed in speeds(*slice_s)]


def least_time_s(slice_s: list[float], num_slices: int) -> float:
    """The least time in which these workers can do so many slices."""
    times = sorted(count * each for each in slice_s for count in range(1, num_slices + 1))
    enough = (t for t in times if sum(int(t * (1 + 1e-9) / each) for each in slice_s) >= num_slices)
    return next(enough)


@given(st.lists(SECONDS, min_size=1, max_size=20), NUM_SLICES)
def test_shares_are_a_partition(slice_s: list[float], num_slices: int) -> None:
    shares = make_plan(speeds(*slice_s), num_slices)
    assert shares[0].first == 0 and shares[-1].stop == num_slices
    assert all(left.stop == right.first for left, right in pairwise(shares))
    assert all(share.first < share.stop for share in shares)
    assert len({share.worker for share in shares}) == len(shares)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12), NUM_SLICES)
@example([7.0, 7.0, 7.0, 7.0, 8.0, 0.5, 1.0, 1.0, 0.5], 32)
def test_nobody_could_be_much_faster(slice_s: list[float], num_slices: int) -> None:
    """Speeds are known to within SAME_SPEED."""
    slice_s = slice_s[:num_slices]
    taken = counts(slice_s, num_slices)
    time_s = max(count * each for count, each in zip(taken, slice_s, strict=True))
    assert time_s <= least_time_s(slice_s, num_slices) * SAME_SPEED**2 * (1 + 1e-6)


@given(st.integers(1, 64), NUM_SLICES)
def test_equal_workers_get_equal_shares(num_workers: int, num_slices: int) -> None:
    taken = counts([0.1] * min(num_workers, num_slices), num_slices)
    assert max(taken) <= -(-num_slices // len(taken))


@pytest.mark.parametrize("num_slices", [8, 16, 32, 64])
@pytest.mark.parametrize("num_workers", [1, 2, 4, 8])
def test_a_power_of_two_of_equal_workers_push_one_node_each(num_workers: int, num_slices: int) -> None:
    shares = make_plan(speeds(*[0.1] * num_workers), num_slices)
    assert [len(cover(share.first, share.stop)) for share in shares] == [1] * num_workers


def test_three_of_eight() -> None:
    """3, 3 and 2, cut where the fewest nodes are: what the design page promises."""
    shares = make_plan(speeds(0.1, 0.1, 0.1), 8)
    assert sorted(share.stop - share.first for share in shares) == [2, 3, 3]
    assert sum(len(cover(share.first, share.stop)) for share in shares) == 5


@pytest.mark.parametrize(
    ("slice_s", "expected"),
    [
        ([0.1, 0.3], [6, 2]),
        ([0.1, 0.11], [4, 4]),  # noise
        ([0.1, 0.0], [4, 4]),  # not known yet
        ([0.1, 100.0], [8, 0]),  # better without
    ],
)
def test_shares_follow_speeds(slice_s: list[float], expected: list[int]) -> None:
    assert counts(slice_s, 8) == expected


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12), NUM_SLICES)
def test_a_plan_is_even_for_the_speeds_it_was_made_for(slice_s: list[float], num_slices: int) -> None:
    known = speeds(*slice_s)
    assert unevenness(make_plan(known, num_slices), known, num_slices) == 1.0


def test_a_plan_becomes_uneven() -> None:
    plan = make_plan(speeds(0.1, 0.1), 8)
    assert unevenness(plan, speeds(0.1, 0.3), 8) == pytest.approx(4 * 0.3 / (6 * 0.1))
    assert unevenness(plan, speeds(0.1, 0.11), 8) == 1.0  # noise
    assert unevenness(plan, speeds(0.1, 0.0), 8) == 1.0  # not known yet
    assert unevenness((), [], 8) == 1.0


def test_more_workers_than_slices() -> None:
    assert counts([0.1] * 6, 4) == [1, 1, 1, 1, 0, 0]


def test_nobody() -> None:
    assert make_plan([], 8) == ()
