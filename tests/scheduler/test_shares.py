import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.scheduler.ladder import ladder
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.shares import Need, carried_plan, cheapest_plan, fastest_plan
from elasticflow.scheduler.timeline import ClusterTimeline
from tests.scheduler.cases import CURVES, DIMINISHING, FREE, UNEVEN

LADDER = ladder(DIMINISHING, 4, FREE)


def test_the_lowest_level_that_is_in_time():
    plan = cheapest_plan(Need(LADDER, 150, 100.0), ClusterTimeline(0.0, 4))
    assert (plan.size_now, plan.finish_s, plan.gpu_seconds) == (2, 100.0, 200.0)


def test_less_where_less_is_free_and_more_later():
    timeline = ClusterTimeline(0.0, 4)
    timeline.take(3, 50.0)
    plan = cheapest_plan(Need(LADDER, 150, 120.0), timeline)
    assert list(plan.shares) == [1, 2]
    assert plan.grows_s == 50.0
    assert plan.finish_s == pytest.approx(50.0 + (150 - 50) / 1.5)


def test_a_start_costs_time():
    need = Need(ladder(DIMINISHING, 4, Overheads()), 100, 60.0)
    plan = cheapest_plan(need, ClusterTimeline(0.0, 4))
    assert (plan.size_now, plan.finish_s) == (4, 8.0 + 50.0)
    assert cheapest_plan(Need(need.ladder, 100, 57.0), ClusterTimeline(0.0, 4)) is None


def test_who_stays_pays_only_what_is_left_of_its_last_change():
    rungs = ladder(DIMINISHING, 4, Overheads())
    plan = cheapest_plan(Need(rungs, 100, 53.0, num_gpus=4, lost_s=3.0), ClusterTimeline(0.0, 4))
    assert (plan.size_now, plan.finish_s) == (4, 53.0)


def test_sizes_that_are_slower_are_never_chosen():
    rungs = ladder(UNEVEN, 4, FREE)
    timeline = ClusterTimeline(0.0, 4)
    timeline.take(2, 1e6)
    assert cheapest_plan(Need(rungs, 100, 90.0), timeline) is None
    assert cheapest_plan(Need(rungs, 100, 100.0), timeline).size_now == 1


def test_nothing_is_free():
    timeline = ClusterTimeline(0.0, 4)
    timeline.take(4, 30.0)
    assert cheapest_plan(Need(LADDER, 10, 30.0), timeline) is None
    assert fastest_plan(Need(LADDER, 10, 30.0), timeline).finish_s == 35.0


def test_an_old_plan_goes_on_to_do():
    timeline = ClusterTimeline(0.0, 4)
    timeline.take(3, 50.0)
    old = cheapest_plan(Need(LADDER, 150, 120.0), timeline)
    again = carried_plan(Need(LADDER, 130, 120.0, num_gpus=1), ClusterTimeline(20.0, 4), old)
    assert list(again.shares) == [1, 2]
    assert again.finish_s == pytest.approx(old.finish_s)


def test_merged_steps_promise_no_more_than_there_is():
    exact, coarse = ClusterTimeline(0.0, 64, 1000), ClusterTimeline(0.0, 64, 16)
    for number in range(60):
        for timeline in (exact, coarse):
            timeline.take(1, 10.0 + number * 7 % 300)
    at = np.arange(0.5, 300.0)
    free = [one.free[one.starts_s.searchsorted(at, "right") - 1] for one in (exact, coarse)]
    assert len(coarse.starts_s) <= 16
    assert (free[1] <= free[0]).all()
    assert coarse.free[-1] == 64


@settings(max_examples=150)
@given(
    curve=st.sampled_from(CURVES),
    taken=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 300)), max_size=6),
    iterations=st.integers(1, 600),
    deadline_s=st.integers(1, 400),
    costs=st.booleans(),
)
def test_a_plan_does_the_work_in_time_with_what_is_free(curve, taken, iterations, deadline_s, costs):
    rungs = ladder(curve, 16, Overheads() if costs else FREE)
    timeline = ClusterTimeline(0.0, 24)
    for size, end_s in taken:
        timeline.take(size, float(end_s))
    plan = cheapest_plan(Need(rungs, iterations, float(deadline_s)), timeline)
    if plan is None:
        return
    assert plan.finish_s <= deadline_s + 1e-9
    starts_s = timeline.starts_s[timeline.starts_s < plan.finish_s]
    shares = plan.shares_at(starts_s)
    done, before = 0.0, 0
    for start_s, end_s, size in zip(starts_s, [*starts_s[1:], plan.finish_s], shares, strict=True):
        lost_s = rungs.change_s(int(before), rungs.rung(int(size)))
        done += (end_s - start_s - lost_s) * rungs.rates[rungs.rung(int(size))]
        before = size
    assert done >= iterations * (1 - 1e-9)
    timeline.take(plan.shares, plan.finish_s)
    assert (timeline.free >= 0).all()
