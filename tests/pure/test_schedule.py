"""The row of ticks: every record once an epoch, whatever the sizes."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow_ps.table import MOST_SEEN

SCHEDULES = st.builds(
    Schedule,
    num_records=st.integers(1, 100),
    num_test=st.integers(0, 20),
    batch_size=st.integers(1, 40),
    num_slices=st.sampled_from([1, 2, 4, 8, 16]),
    epochs=st.integers(1, 4),
)
WHENEVER = st.builds(
    lambda schedule, every: msgspec.structs.replace(schedule, evaluate_every=every),
    SCHEDULES,
    st.integers(0, 30),
)
"""Those that evaluate after any number of steps as well."""


def ticks(schedule: Schedule) -> list[Work]:
    return [schedule.at(tick) for tick in range(schedule.total_ticks)]


@given(WHENEVER)
def test_each_record_once_an_epoch(schedule: Schedule) -> None:
    for epoch in range(schedule.epochs):
        steps = [work for work in ticks(schedule) if work.epoch == epoch and work.kind is Kind.TRAIN]
        covered = [record for work in steps for record in range(work.first, work.last)]
        assert covered == list(range(schedule.num_records))
        assert {work.num_records for work in steps[:-1]} <= {schedule.batch_size}
        assert 1 <= steps[-1].num_records <= schedule.batch_size


@given(WHENEVER, st.integers(1, 300))
def test_a_bound_leaves_out_what_comes_after_it_and_changes_nothing_before(
    schedule: Schedule, max_steps: int
) -> None:
    bounded = msgspec.structs.replace(schedule, max_steps=max_steps)
    expected = [work for work in ticks(schedule) if work.step <= max_steps]
    assert ticks(bounded) == expected
    assert bounded.total_steps == min(max_steps, schedule.total_steps) == bounded.steps_before(len(expected))


@given(WHENEVER)
def test_slices_partition_a_tick(schedule: Schedule) -> None:
    for work in ticks(schedule):
        parts = [schedule.slice_of(work, number) for number in range(schedule.num_slices)]
        assert [n for first, last in parts for n in range(first, last)] == list(range(work.first, work.last))
        sizes = [size for first, last in parts if (size := last - first)]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(work.num_records, schedule.least_slice)
        assert len(sizes) == schedule.used_slices(work.num_records)


@given(SCHEDULES)
def test_a_full_batch_uses_all_slices(schedule: Schedule) -> None:
    if schedule.batch_size >= schedule.num_slices:
        assert schedule.used_slices(schedule.batch_size) == schedule.num_slices
        assert 2 * schedule.least_slice >= schedule.full_slice >= schedule.least_slice


@pytest.mark.parametrize(
    ("tail", "used"),
    [(5, {0: 5}), (1, {0: 1}), (8, {0: 4, 4: 4}), (15, {0: 7, 4: 8}), (16, {0: 4, 2: 4, 4: 4, 6: 4}),
     (33, {0: 4, 1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 4, 7: 5})],
)  # fmt: skip
def test_small_batches_have_few_slices_which_are_spread(tail: int, used: dict[int, int]) -> None:
    """1,797 records in batches of 64 leave 5, which 8 slices would share as one each, or none."""
    schedule = Schedule(num_records=28 * 64 + tail, num_test=0, batch_size=64, num_slices=8, epochs=1)
    work = schedule.at(28)
    parts = {number: schedule.slice_of(work, number) for number in range(8)}
    assert {number: last - first for number, (first, last) in parts.items() if last > first} == used


@pytest.mark.parametrize(("full", "least"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (8, 4)])
def test_no_slice_of_one_record_where_others_have_more(full: int, least: int) -> None:
    schedule = Schedule(num_records=100, num_test=0, batch_size=8 * full, num_slices=8, epochs=1)
    assert (schedule.full_slice, schedule.least_slice) == (full, least)


@given(SCHEDULES, st.integers(1, 60))
def test_pieces_of_an_evaluation(schedule: Schedule, num_records: int) -> None:
    places = schedule.pieces_of(num_records)
    sizes = [stop - start for start, stop in pairwise(places)]
    assert (places[0], places[-1]) == (0, num_records)
    assert min(sizes) >= min(num_records, schedule.least_slice)
    assert max(sizes) < schedule.full_slice + schedule.least_slice


@given(SCHEDULES, st.booleans())
def test_the_tail_is_left_out(schedule: Schedule, asynchronous: bool) -> None:
    schedule = msgspec.structs.replace(schedule, drop_last=True, asynchronous=asynchronous)
    batch = schedule.full_slice if asynchronous else schedule.batch_size
    covered = sum(work.num_records for work in ticks(schedule) if work.kind is Kind.TRAIN)
    assert covered == schedule.records_per_epoch * schedule.epochs
    assert schedule.records_per_epoch + schedule.records_left_out == schedule.num_records
    assert schedule.records_per_epoch % batch == 0 and schedule.records_left_out < batch


@given(SCHEDULES)
def test_an_epoch_ends_with_an_evaluation(schedule: Schedule) -> None:
    for work in ticks(schedule):
        following = schedule.at(work.tick + 1)
        last_of_epoch = work.tick + 1 == schedule.total_ticks or following.epoch > work.epoch
        evaluates = bool(schedule.num_test) and last_of_epoch
        assert schedule.evaluates(work.tick) == evaluates == (work.kind is Kind.EVALUATE)
        if evaluates:
            assert (work.first, work.last) == (0, schedule.num_test)
    assert not schedule.evaluates(schedule.total_ticks)


@given(WHENEVER)
def test_when_there_are_evaluations_has_no_influence_on_the_steps(schedule: Schedule) -> None:
    every = schedule.evaluate_every or schedule.steps_per_epoch
    never = msgspec.structs.replace(schedule, num_test=0)
    steps = [work for work in ticks(schedule) if work.kind is Kind.TRAIN]
    assert [msgspec.structs.replace(work, tick=0) for work in steps] == [
        msgspec.structs.replace(work, tick=0) for work in ticks(never)
    ]
    evaluations = [work for work in ticks(schedule) if work.kind is Kind.EVALUATE]
    if schedule.num_test:
        assert [work.step for work in evaluations] == list(range(every, schedule.total_steps + 1, every))
    for work in evaluations:
        trained = schedule.at(work.tick - 1)
        assert (trained.step, trained.epoch) == (work.step, work.epoch)


@given(WHENEVER)
def test_steps_are_counted_through(schedule: Schedule) -> None:
    done = 0
    for work in ticks(schedule):
        assert schedule.steps_before(work.tick) == done
        done += work.kind is Kind.TRAIN
        assert work.step == done
        assert schedule.tick_of(done) == work.tick + 1 or schedule.evaluates(work.tick + 1)
    assert schedule.steps_before(schedule.total_ticks) == schedule.total_steps == done


@given(WHENEVER, st.integers(0, 300))
def test_a_step_of_two_ticks_is_encoded_first(schedule: Schedule, max_steps: int) -> None:
    plain = msgspec.structs.replace(schedule, max_steps=max_steps)
    staged = msgspec.structs.replace(plain, stages=2)
    found = ticks(staged)
    for before, work in pairwise(found):
        if work.kind is Kind.TRAIN:
            assert before == msgspec.structs.replace(work, kind=Kind.ENCODE, tick=work.tick - 1, stage=0)
            assert before.draws == work.draws == work.tick
    rest = [work for work in found if work.kind is not Kind.ENCODE]
    assert [msgspec.structs.replace(work, tick=n, stage=0) for n, work in enumerate(rest)] == ticks(plain)
    assert [work.tick for work in found if work.kind is Kind.TRAIN] == list(
        filter(staged.trains, range(len(found)))
    )
    assert [work.tick for work in found if work.kind is Kind.EVALUATE] == list(
        filter(staged.evaluates, range(len(found)))
    )


@given(WHENEVER, st.integers(1, 2))
def test_there_may_be_one_checkpoint_a_step(schedule: Schedule, stages: int) -> None:
    staged = msgspec.structs.replace(schedule, stages=stages)
    versions = [v for v in range(staged.total_ticks + 1) if staged.may_cut(v)]
    assert [staged.steps_before(version) for version in versions] == list(range(staged.total_steps + 1))
    assert all(staged.tick_of(step) == v for step, v in enumerate(versions) if not staged.num_test)


def test_more_steps_than_rows_of_tables_can_note_are_refused() -> None:
    most = Schedule(num_records=1, num_test=0, batch_size=1, num_slices=1, epochs=MOST_SEEN)
    assert not most.too_long(tables=True)
    more = msgspec.structs.replace(most, epochs=MOST_SEEN + 1)
    assert "more than can be counted, 2147483647 with embedding tables" in more.too_long(tables=True)
    assert not more.too_long(tables=False)


def test_ticks_that_were_asked_for_before_are_the_same() -> None:
    schedule = Schedule(num_records=100, num_test=7, batch_size=10, num_slices=2, epochs=9)
    first = [schedule.at(tick) for tick in range(60)]
    assert [schedule.at(tick) for tick in [*range(60), *range(59, -1, -1)]] == [*first, *reversed(first)]
    assert schedule == Schedule(num_records=100, num_test=7, batch_size=10, num_slices=2, epochs=9)
