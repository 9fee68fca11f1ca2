"""How many records ``forward`` is given at once: all the sizes that will occur in a run, to try them out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from elasticflow.step.schedule import Kind, Schedule


class Shape(NamedTuple):
    """So many records at once. where: of the run, for people."""

    kind: Kind
    num_records: int
    where: str


def shapes_of(schedule: Schedule) -> list[Shape]:
    """Each size once, as it first occurs in an epoch. Quarantine may make others."""
    found = {(shape.kind, shape.num_records): shape for shape in reversed(list(_all(schedule)))}
    return list(reversed(found.values()))


def short_tail(schedule: Schedule) -> Shape | None:
    """The last batch of an epoch, where it has fewer records than any slice should have; None: it has not."""
    last = schedule.at(schedule.steps_per_epoch - 1)
    if last.num_records >= schedule.least_slice:
        return None
    return Shape(Kind.TRAIN, last.num_records, _tail(schedule))


def _all(schedule: Schedule) -> Iterator[Shape]:
    steps = {0: "a batch", schedule.steps_per_epoch - 1: _tail(schedule)}
    for tick, where in steps.items():
        yield from (Shape(Kind.TRAIN, size, where) for size in _sizes(schedule, tick))
    if schedule.num_test:
        for size in _sizes(schedule, schedule.steps_per_epoch):
            for start, stop in pairwise(schedule.pieces_of(size)):
                yield Shape(Kind.EVALUATE, stop - start, "the evaluation")


def _sizes(schedule: Schedule, tick: int) -> list[int]:
    work = schedule.at(tick)
    parts = (schedule.slice_of(work, number) for number in range(schedule.num_slices))
    return [last - first for first, last in parts if last > first]


def _tail(schedule: Schedule) -> str:
    return f"the last batch of an epoch ({schedule.records_per_epoch:,} records by {schedule.batch_size:,})"
