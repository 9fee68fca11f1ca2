"""Jobs that make room for one another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.scheduler.balance import Player, balance
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.ladder import ladder
from elasticflow.scheduler.shares import Need
from elasticflow.scheduler.timeline import ClusterTimeline
from tests.scheduler.cases import FREE, crowds


@settings(max_examples=50, deadline=None)
@given(
    crowds(),
    st.sampled_from((4, 8, 16)),
    st.tuples(st.floats(0, 5000), st.floats(1, 5000), st.integers(0, 4)),
)
def test_plans_are_in_time_and_take_no_more_than_there_is(
    jobs: list[Job], num_gpus: int, fewer: tuple[float, float, int]
) -> None:
    """fewer: from when, for how long, and by what part of the GPUs there are fewer."""
    begins_s, lasts_s, part = fewer
    empty = ClusterTimeline(0.0, num_gpus)
    empty.limit(begins_s, begins_s + lasts_s, num_gpus - num_gpus * part // 4)
    due = {one.job_id: one.deadline_s for one in jobs if one.deadline_s is not None}
    players = [
        Player(one.job_id, Need(ladder(one.curve, num_gpus, FREE), one.iterations, due[one.job_id]), False)
        for one in jobs
        if one.job_id in due
    ]
    plans = balance(players, empty)
    assert all(plan.finish_s <= due[name] + 1e-6 for name, plan in plans.items())
    starts_s = {start_s for one in plans.values() if one.starts_s is not None for start_s in one.starts_s}
    for at_s in starts_s:
        taken = sum(int(one.shares_at(np.array([at_s]))[0]) for one in plans.values() if at_s < one.finish_s)
        assert taken <= empty.free[empty.starts_s.searchsorted(at_s, "right") - 1]
