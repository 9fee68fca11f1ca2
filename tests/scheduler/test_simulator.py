import json

import pytest

from elasticflow.errors import ConfigError
from elasticflow.scheduler.metrics import metrics
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import POLICIES, policy
from elasticflow.scheduler.schedule import Outage
from elasticflow.scheduler.simulator import simulate
from elasticflow.scheduler.worlds import (
    DAY_S,
    Slowness,
    World,
    random_outages,
    random_slowness,
    wrong_profiles,
)
from tests.scheduler.cases import DIMINISHING, FREE, STEEP, ends, job, play, ratio, shape_of, trace


def test_a_lost_node_costs_the_change_and_the_failure():
    costs = Overheads(same_s=0.0, base_s=5.0, step_s=0.0, failure_s=30.0)
    world = World(outages=(Outage(0, 50.0, 5000.0),))
    schedule = play([job("a", 400, 1e4, of=STEEP)], 8, overheads=costs, world=world)
    before, after = schedule.segments
    assert before.end_s == after.start_s == 50.0
    assert len(before.gpus) == 8 and set(after.gpus) == {4, 5, 6, 7}
    assert after.lost_s == 35.0
    assert ends(schedule)["a"].finished_s == 50 + 35 + (400 - 45 * 8) / 4


def test_a_slow_node_sets_the_pace():
    world = World(slow=(Slowness(0, 10.0, 1e6, 0.5),))
    schedule = play([job("a", 100, 1e4)], world=world)
    assert ends(schedule)["a"].finished_s == 10 + (100 - 20) / 1.0


def test_a_slow_job_gets_more_gpus_if_its_deadline_needs_them():
    jobs = [job("a", 200, 240.0), job("b", 280, 300.0)]
    world = World(slow=(Slowness(0, 20.0, 1e6, 0.8),))
    assert ratio(play(jobs, world=world)) == 1.0


def test_wrong_profiles_are_found_out():
    jobs = [job("a", 100, 200.0), job("b", 100, 400.0, 50.0)]
    world = World(curves={DIMINISHING: DIMINISHING.scaled(0.8)})
    schedule = play(jobs, world=world)
    assert ratio(schedule) == 1.0
    assert not any(one.late for one in schedule.outcomes)


def test_what_is_by_chance_depends_on_the_seed_alone():
    jobs, shape = trace("195job", 50), shape_of(64)
    assert wrong_profiles(jobs, 0.2, 1) == wrong_profiles(reversed(jobs), 0.2, 1)
    assert wrong_profiles(jobs, 0.2, 1) != wrong_profiles(jobs, 0.2, 2)
    for profile, true in wrong_profiles(jobs, 0.2, 1).items():
        parts = [true.rate(size) / profile.rate(size) for size in profile.sizes]
        assert 0.8 <= min(parts) <= max(parts) <= 1.2
    outages = random_outages(shape, jobs, DAY_S, 3600.0, 3)
    assert outages == random_outages(shape, jobs, DAY_S, 3600.0, 3)
    assert outages and all(one.end_s - one.start_s == 3600.0 for one in outages)
    assert random_slowness(shape, jobs, 0.1, 0.7, 3600.0, 3)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_on_a_part_of_a_trace(name):
    schedule = play(trace("195job", 50), 64, name, Overheads(), gpus_per_node=8)
    found = metrics(schedule)
    assert found["deadline_jobs"] == 50 and 0 < found["satisfactory_ratio"] <= 1
    assert json.loads(json.dumps(found)) == found


def test_fifo_waits_for_the_first_and_fixed_overtakes():
    jobs = [
        job("a", 100, 1e4, requested_gpus=2),
        job("b", 100, 1e4, 1.0, requested_gpus=4),
        job("c", 10, 1e4, 2.0, requested_gpus=2),
    ]
    assert ends(play(jobs, name="fifo"))["c"].finished_s > 100
    assert ends(play(jobs, name="fixed"))["c"].finished_s == 2 + 10 / 1.5


def test_las_lets_the_new_one_go_first():
    jobs = [job("a", 1e5, 1e6, requested_gpus=4), job("b", 100, 1e6, 5000.0, requested_gpus=4)]
    assert ends(play(jobs, name="las"))["b"].finished_s == 5050.0


def test_edf_admission_refuses_what_would_make_others_late():
    jobs = [job("a", 150, 100.0), job("b", 150, 100.0), job("c", 150, 100.0)]
    admitted = [one for one in play(jobs, name="edf-admission").outcomes if one.admitted_s is not None]
    assert len(admitted) == 2 and all(one.in_time for one in admitted)


def test_no_jobs_at_all():
    schedule = play([])
    found = metrics(schedule)
    assert found["satisfactory_ratio"] is None and found["utilisation"] is None


def test_the_clock_is_given():
    ticks = iter(range(1000))
    made = policy("elastic", shape_of(4), FREE)
    schedule = simulate(made, [job("a", 10, 100.0)], clock=lambda: float(next(ticks)))
    assert {one.took_s for one in schedule.decision_times} == {1.0}


def test_a_policy_that_is_not_there():
    with pytest.raises(ConfigError, match="no policy 'best'; there are elastic, edf-admission"):
        policy("best", shape_of(4), FREE)
