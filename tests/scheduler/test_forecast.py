"""Plans as they stand, told for people."""

from __future__ import annotations

from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.curves import curve
from elasticflow.scheduler.events import ArrivalEvent
from elasticflow.scheduler.forecast import Forecast, PlannedJob, PlannedShare, shares_of
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.tracks import Standing


def test_a_plan_is_told_as_it_is_and_who_has_none_goes_on_as_it_is() -> None:
    policy = Elastic(ClusterShape(1, 4), Overheads(0.0, 0.0, 0.0, 0.0))
    rates = curve({1: 1.0, 2: 1.5, 4: 2.0})
    arrivals = [Job("due", rates, 150.0, 0.0, 215.0), Job("patient", rates, 600.0, 0.0, None)]
    policy.handle([ArrivalEvent(job) for job in arrivals], 0.0)
    due, patient = policy.tracks["due"], policy.tracks["patient"]
    assert due.plan is not None and due.standing is Standing.PROMISED
    shares, is_plan = shares_of(due, 0.0)
    assert is_plan and shares[-1].until_s == due.plan.finish_s
    assert sum(one.num_gpus for one in shares[:1]) == due.plan.size_now
    planned_gpu_s, since_s = 0.0, 0.0
    for share in shares:
        planned_gpu_s += share.num_gpus * (share.until_s - since_s)
        since_s = share.until_s
    assert abs(planned_gpu_s - due.plan.gpu_seconds) < 1e-6
    assert shares_of(patient, 0.0) == (
        (((PlannedShare(patient.finish_s(), len(patient.gpus)),), False)) if patient.gpus else ((), False)
    )


def test_what_is_taken_is_the_sum_of_plans_and_a_far_deadline_does_not_stretch_the_picture() -> None:
    a = PlannedJob("a", "promised", 4, (PlannedShare(10.0, 2), PlannedShare(30.0, 1)), 40.0, True)
    b = PlannedJob("b", "promised", 1, (PlannedShare(20.0, 1),), 5000.0, True)
    c = PlannedJob("c", "best effort", 1, (PlannedShare(25.0, 1),), None, False)
    forecast = Forecast(0.0, 4, (a, b, c))
    assert [forecast.taken(at_s) for at_s in (0.0, 9.9, 10.0, 20.0, 30.0)] == [3, 3, 2, 1, 0]
    assert 40.0 <= forecast.end_s < 45.0
    assert Forecast(5.0, 4, ()).end_s > 5.0
