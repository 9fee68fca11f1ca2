"""A run's losses as a curve: each step once, none that was undone, and never more than so many points."""

from __future__ import annotations

import math

import msgspec
import pytest

from elasticflow.master.curve import MOST, LossCurve
from tests.telling import Told


def grown(steps: int, every_s: float = 1.0) -> LossCurve:
    curve = LossCurve()
    for step in range(1, steps + 1):
        curve.add(step, float(step), 0.1, 2, step * every_s, last=step == steps)
    return curve


def test_points_are_means_of_the_steps_since_the_one_before() -> None:
    curve = LossCurve()
    for step, loss, time_s in ((1, 4.0, 0.1), (2, 3.0, 0.3), (4, 1.0, 0.9), (5, 2.0, 1.2), (6, 9.0, 1.3)):
        curve.add(step, loss, 0.5, 2, time_s, last=False)
    assert [(p.step, p.loss) for p in curve.points] == [(1, 4.0), (5, (3 + 1 + 1 + 2) / 4)]
    curve.add(6, None, 0.5, 2, 1.4, last=True)
    assert [(p.step, p.loss) for p in curve.points][2:] == [(6, 9.0)]


def test_what_is_told_twice_is_one_point() -> None:
    curve = grown(3)
    before = list(curve.points)
    curve.add(3, 7.0, 0.1, 2, 100.0, last=True)
    curve.add(2, 7.0, 0.1, 2, 200.0, last=False)
    assert curve.points == before


def test_steps_that_are_undone_are_in_no_point() -> None:
    curve = grown(10)
    curve.add(11, 99.0, 0.1, 2, 10.1, last=False)
    curve.begin(7)
    assert curve.points[-1].step == 7
    curve.add(9, 1.0, 0.1, 2, 12.0, last=False)
    assert [(p.step, p.loss) for p in curve.points[-2:]] == [(7, 7.0), (9, 1.0)]


@pytest.mark.parametrize("steps", [MOST, MOST + 1, 10 * MOST, 100_000])
def test_a_long_run_has_few_points_that_cover_all_of_it(steps: int) -> None:
    curve = grown(steps)
    told = [point.step for point in curve.points]
    assert len(told) <= MOST and told == sorted(set(told)) and told[-1] == steps
    spans = [last - first for first, last in zip([0, *told], told, strict=False)]
    total = sum(span * (point.loss or 0) for span, point in zip(spans, curve.points, strict=True))
    assert math.isclose(total, steps * (steps + 1) / 2, rel_tol=1e-6)
    assert max(spans[-MOST // 4 :]) <= 1 + steps / 1000


def test_what_is_no_number_is_told_as_none_and_can_be_read_again() -> None:
    curve = LossCurve()
    curve.add(1, math.nan, 0.1, 2, 0.0, last=False)
    curve.add(2, math.inf, 0.1, 2, 0.5, last=False)
    again = msgspec.json.decode(msgspec.json.encode(curve), type=LossCurve)
    assert again == curve and again.points[0].loss is None
    again.add(3, 1.0, 0.1, 2, 2.0, last=False)
    again.add(4, 1.0, 0.1, 2, 4.0, last=False)
    assert [point.loss for point in again.points] == [None, None, 1.0]


def test_a_story_tells_them_and_so_does_the_next_masters() -> None:
    told = Told()
    told.state.has("worker-1", "worker-2")
    told.progress(3, loss=1.0, lr=0.5)
    told.after(2).progress(6, loss=2.0, lr=0.25)
    told.next_master()
    told.progress(6, lr=0.25)
    points = told.status().losses
    assert [(p.step, p.loss, p.lr, p.workers) for p in points] == [(3, 1.0, 0.5, 2), (6, 2.0, 0.25, 2)]
    told.regrouped(6, 4)
    assert [point.step for point in told.status().losses] == [3]
