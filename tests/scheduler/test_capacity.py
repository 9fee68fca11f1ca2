"""GPUs that are known to go and to come back: planned for, and never used when they are not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.scheduler.capacity import ALL, Capacity, capacity
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import POLICIES
from elasticflow.scheduler.schedule import JobSchedule
from elasticflow.scheduler.timeline import ClusterTimeline
from elasticflow.scheduler.worlds import World
from tests.scheduler.cases import FREE, crowds, ends, job, play


def most_used_above(schedule: JobSchedule, known: Capacity) -> float:
    """GPUs in use above what may be used, at the worst time."""
    times_s = sorted({one.start_s for one in schedule.segments} | set(known.starts_s))
    return max(
        (
            sum(len(one.gpus) for one in schedule.segments if one.start_s <= at_s < one.end_s)
            - known.at(at_s)
            for at_s in times_s
        ),
        default=0,
    )


def test_what_is_said_holds_from_each_time_until_the_next() -> None:
    known = capacity([(10.0, 4), (20.0, 4), (30.0, 1)])
    assert known == Capacity((10.0, 30.0), (4, 1))
    assert [known.at(at_s) for at_s in (0.0, 10.0, 29.9, 30.0)] == [float("inf"), 4, 4, 1]
    assert [known.next_change_s(at_s) for at_s in (0.0, 10.0, 30.0)] == [10.0, 30.0, float("inf")]
    assert ALL.next_change_s(0.0) == float("inf")
    timeline = known.timeline(12.0, 8, 256)
    assert timeline.starts_s.tolist() == [12.0, 30.0] and timeline.free.tolist() == [4, 1]


def test_a_limit_takes_nothing_that_is_not_free_anyway() -> None:
    timeline = ClusterTimeline(0.0, 4)
    timeline.take(3, 10.0)
    timeline.limit(5.0, 20.0, 2)
    assert timeline.starts_s.tolist() == [0.0, 5.0, 10.0, 20.0]
    assert timeline.free.tolist() == [1, 1, 2, 4]


def test_a_plan_does_before_what_it_cannot_do_then() -> None:
    """On 2 GPUs a is done after 100 s; but from 60 s on there is only 1: 90 + 55 of 150. On 4: 120 + 55."""
    known = capacity([(0.0, 4), (60.0, 1), (200.0, 4)])
    due = job("a", 150, 115.0, submit_s=1.0)
    for name in ("elastic", "edf-admission"):
        ended = ends(play([due], name=name, world=World(capacities=((0.0, known),))))["a"]
        assert ended.in_time and ended.admitted_s is not None
    none = ends(play([job("a", 200, 115.0, submit_s=1.0)], world=World(capacities=((0.0, known),))))["a"]
    assert none.admitted_s is None, "118 + 55 are fewer than 200, which all 4 would do"


CHANGES = st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 8)), min_size=1, max_size=4)


def known_of(changes: list[tuple[int, int]]) -> Capacity:
    return capacity(
        [(0.0, 8), *((float(at_s), size) for at_s, size in sorted(dict(changes).items())), (9000.0, 8)]
    )


@settings(max_examples=40, deadline=None)
@given(crowds(), CHANGES, st.sampled_from(sorted(POLICIES)))
def test_nobody_uses_what_is_not_there(jobs: list[Job], changes: list[tuple[int, int]], name: str) -> None:
    known = known_of(changes)
    schedule = play(jobs, 8, name, Overheads(), World(capacities=((0.0, known),)), gpus_per_node=8)
    assert most_used_above(schedule, known) <= 0


@settings(max_examples=40, deadline=None)
@given(crowds(), CHANGES)
def test_what_is_known_ahead_makes_no_promise_late(jobs: list[Job], changes: list[tuple[int, int]]) -> None:
    world = World(capacities=((0.0, known_of(changes)),))
    schedule = play(jobs, 8, "elastic", FREE, world, gpus_per_node=8)
    assert not [one.job_id for one in schedule.outcomes if one.late]
    assert np.isfinite([one.finished_s or 0.0 for one in schedule.outcomes]).all()


def test_what_comes_unannounced_is_met_at_the_change() -> None:
    known = capacity([(50.0, 1)])
    schedule = play([job("a", 150, 200.0)], world=World(capacities=((50.0, known),)))
    assert most_used_above(schedule, known) <= 0
    assert ends(schedule)["a"].finished_s == pytest.approx(50.0 + 50.0)
