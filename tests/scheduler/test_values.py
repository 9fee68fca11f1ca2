"""Soft deadlines: what it is worth to be done later, and what is promised then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.cli.serve import read_soft
from elasticflow.errors import ConfigError
from elasticflow.scheduler.curves import curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.values import aims_s, checked, value_at
from tests.scheduler.cases import FREE, crowds, ends, job, play

SOFT = ((30.0, 0.8), (60.0, 0.0))


def test_a_value_falls_evenly_between_what_is_given() -> None:
    worth = {-5.0: 1.0, 0.0: 1.0, 15.0: 0.9, 30.0: 0.8, 45.0: 0.4, 60.0: 0.0, 1e9: 0.0}
    assert {late_s: round(value_at(SOFT, late_s), 9) for late_s in worth} == worth
    assert value_at((), 1.0) == 0.0 and value_at(((10.0, 0.5),), 1e9) == 0.5
    assert aims_s(100.0, SOFT) == [100.0, 107.5, 115.0, 122.5, 130.0, 137.5, 145.0, 152.5]
    assert aims_s(100.0, ()) == [100.0]


@pytest.mark.parametrize(
    "soft", [[(0.0, 0.5)], [(30.0, 1.1)], [(30.0, 0.5), (20.0, 0.4)], [(30.0, 0.5), (60.0, 0.6)]]
)
def test_what_rises_or_goes_back_is_refused(soft: list[tuple[float, float]]) -> None:
    with pytest.raises(ConfigError, match="each has to be later"):
        checked(soft)


def test_it_is_written_with_units() -> None:
    assert read_soft("30m:0.8, 2h:0") == [(1800.0, 0.8), (7200.0, 0.0)]
    for wrong in ("30m", "soon:1", "30m:much", ""):
        with pytest.raises(ConfigError, match="is no AFTER:VALUE"):
            read_soft(wrong)


def test_one_that_is_late_even_alone_is_promised_the_best_moment_that_it_can_reach() -> None:
    """On 4 GPUs 300 iterations take 150 s; by 100 s, and 45 s later, that is not to be had: 152.5 s is."""
    (ended,) = play([job("a", 300, 100.0, soft=SOFT)]).outcomes
    assert ended.by_s == 152.5 and ended.in_time and not ended.late
    (hard,) = play([job("a", 300, 100.0)]).outcomes
    assert hard.admitted_s is None
    (never,) = play([job("a", 330, 100.0, soft=SOFT)]).outcomes
    assert never.admitted_s is None, "nothing is left of its value when it could be done"


def test_the_soft_one_gives_way_and_is_done_later() -> None:
    """Both need all 4 GPUs for 50 s, and one can be first."""
    jobs = [job("hard", 100, 55.0), job("soft", 100, 55.0, soft=((60.0, 0.5),))]
    ended = ends(play(jobs))
    assert ended["hard"].in_time and ended["hard"].by_s is None
    assert ended["soft"].in_time and ended["soft"].by_s == 100.0


@settings(max_examples=40, deadline=None)
@given(crowds(), st.lists(st.booleans(), min_size=12, max_size=12))
def test_who_is_soft_costs_nobody_a_promise(jobs: list[Job], softs: list[bool]) -> None:
    window = ((300.0, 0.9), (3000.0, 0.1))
    some = [
        replace(one, soft=window) if one.deadline_s is not None and is_soft else one
        for one, is_soft in zip(jobs, softs, strict=False)
    ]
    schedule = play(some, 8, overheads=FREE, gpus_per_node=8)
    assert not [one.job_id for one in schedule.outcomes if one.late]


def test_who_has_no_time_to_lose_is_not_late_by_what_sums_are_rounded() -> None:
    """Found by chance: at 372 s what was left of ``tight`` took 2e-13 s too long: it was given nothing."""
    window = ((300.0, 0.9), (3000.0, 0.1))
    steep, flat = curve({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}), curve({1: 1.0, 2: 1.5, 4: 2.0})
    jobs = [
        Job("j0", steep, 362.0, 126.0, 415.6),
        Job("j1", flat, 60.0, 0.0, None),
        Job("j2", steep, 93.0, 171.0, 245.4, soft=window),
        Job("j4", flat, 69.0, 171.0, 226.2, soft=window),
        Job("tight", flat, 2600.0, 96.0, 1396.0),
        Job("j6", flat, 393.0, 125.0, 439.40000000000003),
        Job("j11", flat, 60.0, 372.0, None),
    ]
    schedule = play(jobs, 8, overheads=FREE, gpus_per_node=8)
    assert ends(schedule)["tight"].in_time and not [one.job_id for one in schedule.outcomes if one.late]
