"""The row of ticks: every record once an epoch, whatever the sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.schedule import Kind, Schedule, Work

SCHEDULES = st.builds(
    Schedule,
    num_records=st.integers(1, 100),
    num_test=st.integers(0, 20),
    batch_size=st.integers(1, 40),
    num_slices=st.sampled_from([1, 2, 4, 8, 16]),
    epochs=st.integers(1, 4),
)


def ticks(schedule: Schedule) -> list[Work]:
    return [schedule.at(tick) for tick in range(schedule.total_ticks)]


@given(SCHEDULES)
def test_each_record_once_an_epoch(schedule: Schedule) -> None:
    for epoch in range(schedule.epochs):
        steps = [work for work in ticks(schedule) if work.epoch == epoch and work.kind is Kind.TRAIN]
        covered = [record for work in steps for record in range(work.first, work.last)]
        assert covered == list(range(schedule.num_records))
        assert {work.num_records for work in steps[:-1]} <= {schedule.batch_size}
        assert 1 <= steps[-1].num_records <= schedule.batch_size


@given(SCHEDULES)
def test_slices_partition_a_tick(schedule: Schedule) -> None:
    for work in ticks(schedule):
        parts = [schedule.slice_of(work, number) for number in range(schedule.num_slices)]
        assert [n for first, last in parts for n in range(first, last)] == list(range(work.first, work.last))
        sizes = [last - first for first, last in parts]
        assert max(sizes) - min(sizes) <= 1


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


@given(SCHEDULES)
def test_steps_are_counted_through(schedule: Schedule) -> None:
    done = 0
    for work in ticks(schedule):
        assert schedule.steps_before(work.tick) == done
        done += work.kind is Kind.TRAIN
        assert work.step == done
    assert schedule.steps_before(schedule.total_ticks) == schedule.total_steps == done
