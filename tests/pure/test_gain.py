"""Workers that make a run no faster are given back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.deciding import gaining
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.gain import COST, MEASURE_S, REGROW_S, SETTLED_S, STEPS, Finding, Gain, GainMode
from elasticflow.master.members import RunState
from elasticflow.master.state import MasterState
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Heartbeat, Progress

from .test_master_state import Run, names, only, running

LONG = 10**9
"""Steps that are left."""


def asked(
    gain: Gain, workers: int, step_s: Callable[[int], float], seconds: float, left: int = LONG
) -> list[Finding]:
    """What is found while steps of so many workers take that long."""
    findings: list[Finding] = []
    now_s, version = 0.0, 0
    gain.settle(workers, now_s)
    while now_s < seconds:
        now_s += step_s(gain.working or workers)
        version += 1
        found = gain.made(version, left, True, now_s)
        if isinstance(found, Finding):
            findings.append(found)
            workers = found.fewer
            gain.settle(workers, now_s)
    return findings


@pytest.mark.parametrize("step_s", [0.01, 0.4, 20.0])
def test_workers_that_bring_nothing_are_found_halving_by_halving(step_s: float) -> None:
    found = asked(Gain(0.1, 1, 64), 6, lambda workers: step_s, 1000 * step_s + 1000)
    assert [(each.workers, each.fewer) for each in found] == [(6, 3), (3, 1)]
    assert found[0].text.startswith("3 workers are as fast as 6: a step takes")
    assert "1 worker is as fast as 3" in found[1].text


@pytest.mark.parametrize("step_s", [0.01, 0.4, 20.0])
def test_workers_that_help_stay(step_s: float) -> None:
    assert asked(Gain(0.1, 1, 64), 8, lambda workers: 8 * step_s / workers, 1000 * step_s + 1000) == []


def test_they_stay_as_far_as_they_help() -> None:
    found = asked(Gain(0.1, 1, 64), 8, lambda workers: 1.0 / min(workers, 2), 400)
    assert [(each.workers, each.fewer) for each in found] == [(8, 4), (4, 2)]


def test_those_for_whom_there_are_no_slices_are_found() -> None:
    """8 slices are 2 for each of 4 workers, and no fewer for each of 6."""
    found = asked(Gain(0.1, 1, 8), 6, lambda workers: -(-8 // workers) * 0.1, 1000)
    assert [(each.workers, each.fewer) for each in found] == [(6, 4)]


def test_so_many_as_are_wanted_at_least_stay() -> None:
    found = asked(Gain(0.1, 4, 64), 6, lambda workers: 0.1, 300)
    assert [(each.workers, each.fewer) for each in found] == [(6, 4)]


@settings(max_examples=30)
@given(st.floats(0.001, 100), st.floats(1, 2), st.integers(2, 64))
def test_questions_cost_little(step_s: float, gain: float, workers: int) -> None:
    """Of workers that stay: what half of them were slower, of all the time."""
    spent_s = all_s = 0.0
    asking, version = Gain(1e-9, 1, 64), 0
    asking.settle(workers, 0.0)
    for _ in range(3_000):
        half = asking.working is not None
        took_s = step_s * (gain if half else 1)
        spent_s += took_s - step_s if half else 0.0
        all_s += took_s
        version += 1
        asking.made(version, 3_000 - version, True, all_s)
    assert spent_s <= 2 * COST * all_s + MEASURE_S


def test_a_short_run_is_asked_nothing() -> None:
    assert asked(Gain(0.1, 1, 64), 8, lambda workers: 10.0, 3600, left=STEPS) == []


def test_who_comes_or_goes_ends_a_question() -> None:
    gain = Gain(0.1, 1, 64)
    gain.settle(4, 0.0)
    now_s, version = SETTLED_S, 0
    while gain.working is None:
        version, now_s = version + 1, now_s + 1.0
        gain.made(version, LONG, True, now_s)
    assert gain.working == 2
    assert not gain.settle(4, now_s)
    assert gain.settle(5, now_s) and gain.working is None
    assert not gain.made(version + 1, LONG, True, now_s + SETTLED_S - 1)
    assert gain.working is None


def test_a_time_in_which_something_else_was_done_is_not_measured() -> None:
    """Each third version is an evaluation, before which nothing can be measured."""
    gain, now_s = Gain(0.1, 1, 64), 0.0
    gain.settle(4, 0.0)
    for version in range(10_000):
        now_s += 1.0
        assert gain.made(version, LONG, version % 3 != 0, now_s) is False
    assert gain.working is None


# --- in a run ------------------------------------------------------------------------------------


def made(run: Run, seconds: float, step_s: Callable[[int], float]) -> list[ac.Action]:
    """The run makes steps, which take so long with so many workers that have slices."""
    actions: list[ac.Action] = []
    end_s, version = run.now_s + seconds, run.state.version
    while run.now_s < end_s:
        run.now_s += step_s(len(run.state.plan))
        version += 1
        for member in list(run.state.members):
            beat = Heartbeat(name=member, tick=version, generation=1)
            actions += run.state.handle(beat, run.now_s)
        actions += run.tell(Progress(name="server-0", generation=1, version=version))
        actions += run.tell(ev.ClockEvent())
    return actions


def test_a_run_gives_back_those_who_bring_nothing_and_tries_again_much_later() -> None:
    run = running(workers="1..6", epochs=100_000, slices=64, batch_size=64)
    actions = made(run, 100.0, lambda workers: 0.5)
    assert [(each.old, each.new) for each in only(ac.ResizedAction, actions)] == [(6, 3)]
    assert names(ac.DrainAction, actions) == ["worker-6", "worker-5", "worker-4"]
    assert run.state.target == 3 and run.state.reason.startswith("3 workers are as fast as 6")
    assert set(run.shares) == {"worker-1", "worker-2", "worker-3"}
    for name in ("worker-4", "worker-5", "worker-6"):
        run.exited(name)
    made(run, 100.0, lambda workers: 0.5)
    run.exited("worker-2")
    run.exited("worker-3")
    assert run.state.target == 1
    actions = made(run, 2 * REGROW_S + SETTLED_S, lambda workers: 0.5)
    (more,) = only(ac.ResizedAction, actions)
    assert (more.old, more.new, more.reason) == (1, 2, "whether more workers help by now is tried again")


def test_those_who_rest_are_in_the_plan_again_once_the_question_is_over() -> None:
    run = running(workers="1..4", epochs=100_000)
    actions = made(run, 200.0, lambda workers: 1.0 / workers)
    planned = [len(plan.shares) for plan in only(ac.PlanAction, actions)]
    assert planned == [2, 4]
    assert run.state.target == 4 and not only(ac.ResizedAction, actions)


@pytest.mark.parametrize(
    "chosen", [{"workers": "4"}, {"workers": "1..4", "least_gain": 0.0}, {"workers": "1..4", "scale": 3}]
)
def test_whoever_is_wanted_stays(chosen: dict[str, object]) -> None:
    scale = chosen.pop("scale", 0)
    run = running(epochs=100_000, **chosen)
    if scale:
        run.tell(ev.ScaleEvent(3))
        run.exited("worker-4")
    actions = made(run, 600.0, lambda workers: 0.5)
    assert not only(ac.ResizedAction, actions) and not only(ac.PlanAction, actions)


def test_the_next_master_goes_on_with_fewer_and_tries_more_later() -> None:
    run = running(workers="1..2", epochs=100_000)
    made(run, 100.0, lambda workers: 0.5)
    assert run.state.target == 1
    run.exited("worker-2")
    data = msgspec.json.encode(run.state.memory())
    run.state = MasterState(run.state.config, memory=msgspec.json.decode(data, type=Memory))
    assert run.state.staff.gain.mode is GainMode.CAPS
    run.state.adopt({"server-0": 1, "worker-1": 2}, run.now_s)
    assert run.state.target == 1
    assert only(ac.ResizedAction, made(run, REGROW_S + 1, lambda workers: 0.5))


def test_a_pace_is_that_of_whole_steps() -> None:
    """Of two ticks each, which take different times; evaluations are none."""
    asked_of: list[tuple[int, int, bool]] = []
    gain = SimpleNamespace(made=lambda step, left, usual, now_s: asked_of.append((step, left, usual)))
    schedule = Schedule(num_records=20, num_test=5, batch_size=10, num_slices=2, epochs=2, stages=2)
    run: Any = SimpleNamespace(
        schedule=schedule, state=RunState.RUNNING, staff=SimpleNamespace(gain=gain), version=0
    )
    for version in range(1, schedule.total_ticks + 1):
        run.version = version
        assert gaining.made(run, version - 1, float(version)) == []
    first, second = [(1, 3, True), (2, 2, True), (2, 2, False)], [(3, 1, True), (4, 0, True), (4, 0, False)]
    assert asked_of == first + second
