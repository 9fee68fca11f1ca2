"""The bound: by hand where that can be done, above real schedules elsewhere, and on the table's traces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from benchmarks import fluid
from benchmarks.fluid import TRACES, Demand, bound_of, demands_of, envelope, fluid_bound, page
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads


def _job(name: str, start_s: float, deadline_s: float, iterations: float, *rates: float) -> Demand:
    """rates: on 1, 2, 4, ... GPUs."""
    points = [(1 << power, rate) for power, rate in enumerate(rates)]
    is_possible = max(rates) * (deadline_s - start_s) >= iterations
    return Demand(name, start_s, deadline_s, iterations, *envelope(points), is_possible)


def test_the_envelope_leaves_out_what_a_mixture_beats() -> None:
    sizes, rates = envelope([(1, 1.0), (2, 1.2), (4, 3.0), (8, 2.5)])
    assert (sizes, rates) == ((0.0, 1.0, 4.0), (0.0, 1.0, 3.0))


def test_a_job_that_is_impossible_alone() -> None:
    bound = fluid_bound([_job("a", 0, 9, 10, 1.0), _job("b", 0, 10, 10, 1.0)], 64)
    assert (bound.num_possible, bound.whole_jobs, bound.served) == (1, 1, {"a": 0.0, "b": 1.0})


def test_the_cost_of_a_start() -> None:
    """On one GPU 10 s are lost, on two 12 s: 88 x 1.5 = 132 iterations are possible in 100 s, not 150."""
    cost = Overheads(same_s=0.0, base_s=8.0, step_s=2.0)
    jobs = [Job(str(n), Curve((1, 2), (1.0, 1.5)), n, 0.0, 100.0) for n in (90, 132, 133, 150)]
    assert [one.is_possible for one in demands_of(jobs, 4)] == [True, True, True, True]
    assert [one.is_possible for one in demands_of(jobs, 4, cost)] == [True, True, False, False]
    assert {one.start_s for one in demands_of(jobs, 4, cost)} == {10.0}
    best_effort = Job("b", Curve((1,), (1.0,)), 5, 0.0, None)
    assert demands_of([best_effort], 4) == []


def test_two_of_three_by_hand() -> None:
    """One GPU for 10 s, three jobs of 4 s each: two are done, and half of the third."""
    bound = fluid_bound([_job(name, 0, 10, 4, 1.0) for name in "abc"], 1)
    assert bound.jobs == pytest.approx(2.5)
    assert (bound.whole_jobs, bound.ratio) == (2, pytest.approx(2 / 3))
    assert bound.prices.max() == pytest.approx(1 / 4)  # a job for every 4 s of the GPU


def test_part_of_a_job_has_part_of_its_width() -> None:
    """A tight job needs its width all the time; half of it may not use all of the width half the time."""
    tight, other = _job("tight", 0, 10, 10, 1.0), _job("other", 0, 5, 5, 1.0)
    bound = fluid_bound([tight, other], 1)
    # In the first 5 s z of the tight and y of the other share a GPU: z + y <= 1. Without the limit on the
    # width the tight one could do half of its work in the last 5 s, and 1.5 jobs were the answer.
    assert bound.jobs == pytest.approx(1)


def test_what_is_left_out_of_the_program_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = (1.0, 1.7, 2.5)
    rush = [_job(f"rush {n}", n, n + 4 + n % 5, 3 + n % 4, *rates) for n in range(10)]
    loose = [_job(f"loose {n}", 50 + n, 90 + n, 5, *rates) for n in range(8)]
    alone = [_job(f"alone {n}", 200 + 20 * n, 210 + 20 * n, 15, *rates) for n in range(3)]
    jobs = [*rush, *loose, *alone]
    short = fluid_bound(jobs, 2)
    monkeypatch.setattr(fluid, "_reduce", lambda demands, num_gpus: fluid._intervals(demands, num_gpus))
    monkeypatch.setattr(fluid, "_all_fit_evenly", lambda *_: False)
    monkeypatch.setattr(fluid, "_groups", lambda rest: [list(range(len(rest.demands)))])
    whole = fluid_bound(jobs, 2)
    assert short.jobs == pytest.approx(whole.jobs, abs=1e-6)
    assert (short.num_in_program, whole.num_in_program) == (10, 21)


JOBS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(1, 10), st.sampled_from((1.0, 1.5, 2.0))),
    min_size=1,
    max_size=7,
)


@given(JOBS, st.sampled_from((1, 2, 4)))
@settings(max_examples=30)
def test_no_schedule_beats_it(listed: list[tuple[int, int, int, float]], num_gpus: int) -> None:
    """Earliest deadline first, a GPU each, second by second: what that gets done in time is a lower bound."""
    jobs = [_job(str(n), s, s + d, w, 1.0, r) for n, (s, d, w, r) in enumerate(listed)]
    left = {job.name: job.iterations for job in jobs}
    for second in range(25):
        here = [j for j in jobs if j.start_s <= second < j.deadline_s and left[j.name] > 0]
        for job in sorted(here, key=lambda job: job.deadline_s)[:num_gpus]:
            left[job.name] -= 1
    bound = fluid_bound(jobs, num_gpus)
    assert sum(one <= 0 for one in left.values()) <= bound.whole_jobs <= bound.num_possible
    assert bound.whole_jobs <= bound.jobs + 1e-6
    assert (bound.prices >= -1e-9).all()


@given(JOBS)
@settings(max_examples=20)
def test_more_gpus_never_lower_it(listed: list[tuple[int, int, int, float]]) -> None:
    jobs = [_job(str(n), s, s + d, w, 1.0, r) for n, (s, d, w, r) in enumerate(listed)]
    found = [fluid_bound(jobs, num_gpus).jobs for num_gpus in (1, 2, 4, 64)]
    assert all(more >= less - 1e-6 for less, more in zip(found, found[1:], strict=False))


@pytest.mark.parametrize(
    ("trace", "num_gpus", "whole", "ratio"),
    [
        ("195job", 128, 183, 0.9385),
        ("195job", 64, 174, 0.892),
        ("elasticVpollux_e", 64, 181, 0.928),
        ("cluster06", 512, 2040, 0.851),
        ("cluster10", 256, 258, 0.992),
        ("cluster01", 512, 1571, 0.985),
    ],
)
def test_the_traces_of_the_table(trace: str, num_gpus: int, whole: int, ratio: float) -> None:
    demands, bound = bound_of(TRACES / f"{trace}.csv", num_gpus)
    assert (bound.whole_jobs, bound.ratio) == (whole, pytest.approx(ratio, abs=6e-4))
    assert page(demands, bound)[0].startswith(f"{whole} of {bound.num_jobs} deadline jobs")
