"""The checker finds what is wrong: each test spoils a good schedule in one way."""

from dataclasses import replace

import pytest

from elasticflow.scheduler.checker import faults
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.schedule import Outage
from tests.scheduler.cases import STEEP, job, play

JOBS = [
    job("a", 400, 300.0, of=STEEP),
    job("b", 300, 400.0, 20.0, of=STEEP),
    job("c", 200, 200.0, 30.0),
]
COSTS = Overheads()


@pytest.fixture
def schedule():
    return play(JOBS, 8, overheads=COSTS)


def first(schedule, name):
    return next(number for number, one in enumerate(schedule.segments) if one.job_id == name)


def spoil(schedule, number, **changes):
    segments = list(schedule.segments)
    segments[number] = replace(segments[number], **changes)
    return replace(schedule, segments=tuple(segments))


def said(schedule, jobs=JOBS):
    return "; ".join(faults(schedule, jobs, COSTS))


def test_a_good_schedule(schedule):
    assert said(schedule) == ""


def test_two_jobs_on_a_gpu(schedule):
    other = schedule.segments[first(schedule, "b")]
    bad = replace(schedule.segments[first(schedule, "a")], start_s=other.start_s, end_s=other.end_s)
    bad = replace(bad, gpus=other.gpus[:1], iterations=0.0)
    assert "GPU" in said(replace(schedule, segments=(*schedule.segments, bad)))


def test_before_its_arrival(schedule):
    number = first(schedule, "b")
    assert "before it arrives" in said(spoil(schedule, number, start_s=0.0))


def test_faster_than_its_curve(schedule):
    number = first(schedule, "a")
    did = schedule.segments[number].iterations
    assert "are possible" in said(spoil(schedule, number, iterations=did * 1.5))


def test_a_change_that_costs_nothing(schedule):
    assert "are possible" in "; ".join(faults(schedule, JOBS, Overheads(same_s=60.0, base_s=60.0)))


def test_finished_without_the_work(schedule):
    number = first(schedule, "a")
    assert "is said to be finished with" in said(spoil(schedule, number, iterations=0.0))


def test_more_work_than_there_is(schedule):
    assert "iterations were done, it has" in said(schedule, [replace(JOBS[0], iterations=10), *JOBS[1:]])


def test_a_size_that_its_curve_lacks(schedule):
    number = first(schedule, "a")
    assert "its curve knows" in said(spoil(schedule, number, gpus=(0, 1, 2)))


def test_more_nodes_than_it_must(schedule):
    number = first(schedule, "c")
    assert "lie on 2 nodes" in said(spoil(schedule, number, gpus=(3, 4)))


def test_a_gpu_that_is_not_there(schedule):
    assert "there are 8" in said(spoil(schedule, first(schedule, "a"), gpus=(8,)))


def test_a_node_that_is_down(schedule):
    assert "(node down)" in said(replace(schedule, outages=(Outage(0, 0.0, 1e6), Outage(1, 0.0, 1e6))))


def test_outcomes_of_other_jobs(schedule):
    assert "outcomes are not those" in said(replace(schedule, outcomes=schedule.outcomes[1:]))
    late = replace(schedule.outcomes[0], deadline_s=1e9)
    assert "another arrival or deadline" in said(replace(schedule, outcomes=(late, *schedule.outcomes[1:])))


def test_finished_when_it_did_not_run(schedule):
    one = replace(schedule.outcomes[0], finished_s=1.0)
    assert "when it did not run" in said(replace(schedule, outcomes=(one, *schedule.outcomes[1:])))


def test_a_job_that_is_not_in_the_trace(schedule):
    assert "not in the trace" in said(schedule, JOBS[1:])
