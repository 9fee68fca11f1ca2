"""Rates and the cost of changes, from when steps began."""

from __future__ import annotations

import pytest

from elasticflow.scheduler.measured import (
    Change,
    MeasuredPhase,
    Step,
    changes,
    measure,
    overheads_of,
    steps_of,
)


def test_ticks_that_evaluate_are_no_steps() -> None:
    begins_s = {tick: float(tick) for tick in range(8)}
    found = steps_of(begins_s, num_steps=3, evaluates=True)  # 0 1 2 (3) 4 5 6 (7)
    assert [step.since_s for step in found] == [0, 1, 2, 4, 5, 6]
    assert len(steps_of(begins_s, num_steps=3, evaluates=False)) == 7


def test_a_tick_that_is_missing_makes_no_step() -> None:
    assert [s.since_s for s in steps_of({0: 0.0, 1: 1.0, 3: 3.0, 4: 4.0}, 100, False)] == [0, 3]


def test_a_step_of_two_ticks_is_one() -> None:
    """0 1 | 2 3 | (4) | 5 6 | 7 8 | (9); 6 is missing."""
    begins_s = {tick: float(tick) for tick in range(10) if tick != 6}
    found = steps_of(begins_s, num_steps=2, evaluates=True, stages=2)
    assert [(step.since_s, step.until_s) for step in found] == [(0, 2), (2, 4), (7, 9)]


def _even(since_s: float, step_s: float, count: int) -> list[Step]:
    return [Step(since_s + step_s * n, since_s + step_s * (n + 1)) for n in range(count)]


def test_a_size_that_comes_twice_is_one_point() -> None:
    steps = [*_even(0, 1, 10), *_even(10, 0.5, 10), *_even(15, 2, 5)]
    phases = [
        MeasuredPhase(1, 0, 0, 0, 10),
        MeasuredPhase(2, 10, 10, 10, 15),
        MeasuredPhase(1, 15, 15, 15, 25),
    ]
    one, two = measure(steps, phases)
    assert (one.workers, one.steps, one.rate) == (1, 15, pytest.approx(15 / 20))
    assert (two.workers, two.steps, two.rate) == (2, 10, pytest.approx(2))
    assert two.noise == pytest.approx(0) and one.noise > 0.1


def test_warming_up_is_not_measured() -> None:
    (point,) = measure([*_even(0, 3, 4), *_even(12, 1, 10)], [MeasuredPhase(1, 0, 0, 12, 22)])
    assert point.rate == pytest.approx(1)


def test_a_size_without_a_step_is_left_out() -> None:
    assert measure([], [MeasuredPhase(1, 0, 0, 0, 1)]) == []


def test_what_a_change_costs() -> None:
    """One step a second until 10, a step of 3 s, then two a second; two are asked for at 8."""
    steps = [*_even(0, 1, 10), Step(10, 13), *_even(13, 0.5, 8)]
    phases = [MeasuredPhase(1, 0, 0, 2, 8), MeasuredPhase(2, 8, 12, 15, 17)]
    (change,) = changes(steps, phases, {1: 1.0, 2: 2.0})
    assert (change.old, change.new, change.ready_s) == (1, 2, 4)
    assert change.standstill_s == pytest.approx(2)
    # From 8 to 15 there were 2 + 1 + 4 steps, which take 3.5 s at the new speed.
    assert change.lost_s == pytest.approx(3.5)


def test_what_the_scheduler_is_to_charge() -> None:
    found = [
        Change(1, 2, 1, 0, 0.4),
        Change(2, 4, 1, 0, 0.6),
        Change(4, 2, 0, 0, 0.1),
        Change(2, 1, 0, 0, 0.2),
    ]
    charged = overheads_of(found, first_step_s=0.3)
    assert charged.same_s == 0.2
    assert charged.move_s(1) >= 0.3 and charged.move_s(2) >= 0.4 and charged.move_s(4) >= 0.6
    assert charged.move_s(4) < 1
    assert overheads_of([], first_step_s=2.0).move_s(1) == 2.0
