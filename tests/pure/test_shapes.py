"""Which numbers of records at once will occur."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.step.schedule import Kind, Schedule
from elasticflow.worker.shapes import Shape, shapes_of, short_tail

SCHEDULES = st.builds(
    Schedule,
    num_records=st.integers(1, 100),
    num_test=st.integers(0, 40),
    batch_size=st.integers(1, 40),
    num_slices=st.sampled_from([1, 2, 4, 8]),
    epochs=st.just(2),
    asynchronous=st.booleans(),
)


@given(SCHEDULES)
def test_all_that_occur_and_no_others(schedule: Schedule) -> None:
    occurring = set()
    for tick in range(schedule.total_ticks):
        work = schedule.at(tick)
        for number in range(schedule.num_slices):
            first, last = schedule.slice_of(work, number)
            places = [0, last - first]
            if work.kind is Kind.EVALUATE and last > first:
                places = schedule.pieces_of(last - first)
            occurring |= {(work.kind, b - a) for a, b in zip(places, places[1:], strict=False) if b > a}
    found = [(shape.kind, shape.num_records) for shape in shapes_of(schedule)]
    assert len(found) == len(set(found)) and set(found) == occurring
    tail = short_tail(schedule)
    assert (tail is not None) == (
        min(n for kind, n in occurring if kind is Kind.TRAIN) < schedule.least_slice
    )


def test_where_they_are() -> None:
    schedule = Schedule(num_records=69, num_test=8, batch_size=64, num_slices=8, epochs=1)
    assert shapes_of(schedule) == [
        Shape(Kind.TRAIN, 8, "a batch"),
        Shape(Kind.TRAIN, 5, "the last batch of an epoch (69 records by 64)"),
        Shape(Kind.EVALUATE, 4, "the evaluation"),
    ]
