"""The order of an epoch: each row once, whatever the sizes, and block by block where there are blocks."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.data import Shuffle

SEEDS = st.integers(0, 2**64 - 1)
PLAIN = [369, 398, 305, 595, 626, 863, 890, 1381]
BLOCKWISE = [369, 743, 209, 628, 592, 568, 665, 653]
BLOCKS = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)


def starts_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)])


@settings(max_examples=1500)
@given(st.integers(1, 2000), SEEDS, st.integers(0, 10**6))
def test_an_epoch_has_each_row_once(num_rows, seed, epoch):
    rows = Shuffle(num_rows, seed).rows(epoch, 0, num_rows)
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


@pytest.mark.parametrize("num_rows", [*range(1, 260), 65_535, 65_536, 65_537, 99_991])
def test_these_sizes_too(num_rows):
    assert np.array_equal(np.sort(Shuffle(num_rows, 3).rows(1, 0, num_rows)), np.arange(num_rows))


@settings(max_examples=700)
@given(BLOCKS, SEEDS, st.integers(0, 100), st.integers(1, 6))
def test_an_epoch_has_each_row_of_each_block_once(sizes, seed, epoch, window_blocks):
    shuffle = Shuffle(sum(sizes), seed, starts_of(sizes), window_blocks)
    rows = shuffle.rows(epoch, 0, sum(sizes))
    assert np.array_equal(np.sort(rows), np.arange(sum(sizes)))


@settings(max_examples=300)
@given(BLOCKS, SEEDS, st.data())
def test_a_range_is_a_part_of_the_whole(sizes, seed, data):
    num_rows = sum(sizes)
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    for blocks in (None, starts_of(sizes)):
        shuffle = Shuffle(num_rows, seed, blocks)
        assert np.array_equal(shuffle.rows(5, start, stop), shuffle.rows(5, 0, num_rows)[start:stop])


@settings(max_examples=300)
@given(BLOCKS, SEEDS, st.integers(1, 6))
def test_each_block_is_wanted_in_one_window_only(sizes, seed, window_blocks):
    starts = starts_of(sizes)
    rows = Shuffle(sum(sizes), seed, starts, window_blocks).rows(0, 0, sum(sizes))
    blocks = np.searchsorted(starts, rows, side="right") - 1
    for block in np.unique(blocks):
        first, last = np.flatnonzero(blocks == block)[[0, -1]]
        assert len(np.unique(blocks[first : last + 1])) <= window_blocks


@given(st.integers(2**40, 2**62), SEEDS)
def test_huge_sources_need_no_list(num_rows, seed):
    rows = Shuffle(num_rows, seed).rows(0, num_rows - 1000, num_rows)
    assert len(np.unique(rows)) == 1000
    assert rows.min() >= 0 and rows.max() < num_rows


def test_orders_differ_between_epochs_and_seeds():
    orders = [Shuffle(1000, seed).rows(epoch, 0, 1000) for seed in range(5) for epoch in range(20)]
    assert len({order.tobytes() for order in orders}) == 100
    places_kept = [np.count_nonzero(a == b) for a in orders for b in orders if a is not b]
    assert np.mean(places_kept) == pytest.approx(1, abs=0.1)  # as of random permutations


def test_block_orders_differ_between_epochs():
    starts = np.arange(0, 1001, 10)
    shuffle = Shuffle(1000, 1, starts)
    windows = {shuffle.rows(epoch, 0, 40).tobytes() for epoch in range(50)}
    assert len(windows) == 50
    assert np.array_equal(shuffle.rows(0, 0, 40), Shuffle(1000, 1, starts).rows(0, 0, 40))


@pytest.mark.parametrize("num_rows", [2, 3, 5, 8, 20])
def test_every_row_comes_everywhere_equally_often(num_rows):
    num_epochs = 3000
    shuffle = Shuffle(num_rows, 11)
    orders = np.array([shuffle.rows(epoch, 0, num_rows) for epoch in range(num_epochs)])
    counts = np.array([np.bincount(orders[:, place], minlength=num_rows) for place in range(num_rows)])
    share = num_epochs / num_rows
    chi_square = ((counts - share) ** 2 / share).sum()
    freedom = (num_rows - 1) ** 2
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_neighbours_in_the_order_are_no_neighbours_in_the_file():
    rows = Shuffle(100_000, 1).rows(0, 0, 100_000)
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(rows, np.arange(100_000))[0, 1]) < 0.02


def test_the_order_is_the_same_everywhere():
    """These numbers must never change: a resumed run would see other records."""
    assert Shuffle(1437, 42).rows(3, 0, 8).tolist() == PLAIN
    assert Shuffle(1437, 42, np.array([0, 100, 101, 800, 1437]), 2).rows(3, 0, 8).tolist() == BLOCKWISE


def test_the_order_does_not_depend_on_the_process():
    program = "from elasticflow.data import Shuffle; print(Shuffle(10**6, 7).rows(2, 5, 9).tolist())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(Shuffle(10**6, 7).rows(2, 5, 9).tolist())


@pytest.mark.parametrize("start, stop", [(-1, 3), (3, 2), (0, 11)])
def test_a_range_out_of_bounds_is_refused(start, stop):
    with pytest.raises(ValueError, match="of 10 rows"):
        Shuffle(10, 0).rows(0, start, stop)


@pytest.mark.parametrize("blocks", [[0], [0, 9], [1, 10], [0, 6, 5, 10]])
def test_blocks_must_cover_the_rows(blocks):
    with pytest.raises(ValueError, match="rise from 0 to 10"):
        Shuffle(10, 0, np.array(blocks))


def test_there_must_be_rows():
    with pytest.raises(ValueError, match="0 rows"):
        Shuffle(0, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 5))
def test_the_next_window_is_what_comes_after_a_position(block_rows, window_blocks):
    starts = np.concatenate([[0], np.cumsum(block_rows)])
    shuffle = Shuffle(int(starts[-1]), 3, starts, window_blocks)
    for epoch in (0, 1, 2, 1):
        firsts = starts[np.searchsorted(starts, shuffle.rows(epoch, 0, shuffle.num_rows), side="right") - 1]
        position, window = 0, shuffle.next_window(epoch, -1)
        while len(window):
            stop = position + sum(np.diff(starts)[np.isin(starts[:-1], window)])
            assert set(firsts[position:stop]) == set(window)
            after = shuffle.next_window(epoch, position)
            assert np.array_equal(after, shuffle.next_window(epoch, stop - 1))
            position, window = stop, after
        assert position == shuffle.num_rows


def test_without_blocks_there_is_no_next_window():
    assert len(Shuffle(10, 3).next_window(0, 5)) == 0
