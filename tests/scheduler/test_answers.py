"""What is said to whoever hands a job in."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.scheduler import events as ev
from elasticflow.scheduler.answers import AnswerKind, answer, earliest_promise_s
from elasticflow.scheduler.cluster import shape_of
from elasticflow.scheduler.decisions import Admitted
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.tracks import Standing
from tests.scheduler.cases import DIMINISHING, FREE, crowds, job


def told(jobs: list[Job], num_gpus: int = 4, at_s: float = 0.0) -> Elastic:
    """A policy that has heard of these, whose curves were measured."""
    policy = Elastic(shape_of(num_gpus, 4), FREE)
    for one in jobs:
        for size, rate in zip(one.curve.sizes, one.curve.rates, strict=True):
            policy.speeds.learn(one, size, rate)
    policy.handle([ev.ArrivalEvent(one) for one in jobs], at_s)
    return policy


def clock(time_s: float) -> str:
    """As minutes and seconds."""
    return f"{int(time_s // 60):02}:{int(time_s % 60):02}"


def test_an_empty_cluster_promises() -> None:
    policy = told([])
    policy.speeds.measured = {(DIMINISHING, size): DIMINISHING.rate(size) for size in DIMINISHING.sizes}
    said = answer(policy, job("a", 150, 115), 0.0)
    assert said.kind is AnswerKind.PROMISED
    assert said.text(clock) == "promised, done at 01:40 by its plan"
    assert not policy.tracks


def test_best_effort_is_told_so() -> None:
    assert answer(told([]), job("a", 150, None), 0.0).kind is AnswerKind.BEST_EFFORT


def test_a_deadline_that_is_too_early_is_answered_with_one_that_is_promised() -> None:
    policy = told([job("a", 300, 160)])  # on all four GPUs until 150 s
    late = job("b", 150, 140)
    said = answer(policy, late, 0.0)
    assert said.kind is AnswerKind.NOT_BEFORE and said.earliest_s is not None
    assert 150 < said.earliest_s < 240
    assert said.text(clock).startswith("not before 03:") or said.text(clock).startswith("not before 02:")
    decisions = policy.handle([ev.ArrivalEvent(replace(late, deadline_s=said.earliest_s))], 0.0)
    assert any(isinstance(one, Admitted) and one.job_id == "b" for one in decisions)


def test_a_higher_priority_takes_what_others_only_hope_for() -> None:
    policy = told([job("a", 290, 150)])
    policy.tracks["a"].standing = Standing.HOPEFUL
    said = answer(policy, job("b", 300, 160), 0.0)
    assert said.kind is AnswerKind.NOT_BEFORE
    assert said.priority == 1 and said.priority_s is not None and said.earliest_s is not None
    assert said.priority_s < said.earliest_s
    assert "; with priority 1 at " in said.text(clock)


def test_what_no_size_can_run_is_told_so() -> None:
    large = Job("x", replace(DIMINISHING, sizes=(8, 16), rates=(1.0, 2.0)), 10.0, 0.0, 5.0)
    said = answer(told([]), large, 0.0)
    assert said.text(clock) == "no deadline can be promised now"


@settings(max_examples=25, deadline=None)
@given(crowds(most=6), st.sampled_from((4, 8)))
def test_who_asks_for_the_deadline_that_was_named_is_promised_it(jobs: list[Job], num_gpus: int) -> None:
    jobs = [replace(one, submit_s=0.0) for one in jobs if one.deadline_s is None or one.deadline_s > 1]
    *before, last = jobs or [job("a", 10, 20)]
    policy = told(before, num_gpus)
    seen = {name: (one.standing, one.gpus) for name, one in policy.tracks.items()}
    earliest_s = earliest_promise_s(policy, last, 0.0)
    assert seen == {name: (one.standing, one.gpus) for name, one in policy.tracks.items()}
    if earliest_s is None:
        return
    decisions = policy.handle([ev.ArrivalEvent(replace(last, deadline_s=earliest_s))], 0.0)
    assert any(isinstance(one, Admitted) and one.job_id == last.job_id for one in decisions)


def test_who_cannot_wait_is_told_the_best_that_is_known_so_far() -> None:
    """However few decisions may be tried: what is named is promised."""
    policy = told([job("a", 300, 160)])
    late = job("b", 150, 140)
    whole = answer(policy, late, 0.0)
    assert whole.is_whole and whole.earliest_s is not None
    for most in range(30):
        asked = iter(range(1000))
        said = answer(policy, late, 0.0, is_late=lambda asked=asked, most=most: next(asked) >= most)
        assert said.is_whole or next(asked) >= most
        if said.earliest_s is None:
            assert said.text(clock) == "which could be is not known so soon"
            continue
        assert said.earliest_s >= whole.earliest_s
        copy = policy.copy()
        decisions = copy.handle([ev.ArrivalEvent(replace(late, deadline_s=said.earliest_s))], 0.0)
        assert any(isinstance(one, Admitted) and one.job_id == "b" for one in decisions)
        if not said.is_whole:
            assert said.text(clock) == f"would be by {clock(said.earliest_s)} at the latest"
    assert said == whole, "thirty are more than enough"
