"""What evaluations decide is a function of them alone, wherever it is worked out, and from where on."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticflow as ef
from elasticflow.errors import ProgramError
from elasticflow.master.standings import Standings
from elasticflow.step.schedule import Schedule
from elasticflow.training.standing import Plateau, Watch, WatchRules, WatchStanding

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=16), max_size=30)
WATCHES = st.builds(
    Watch,
    metric=st.just("cost"),
    mode=st.sampled_from(["min", "max"]),
    patience=st.integers(1, 4),
    least_gain=st.sampled_from([0.0, 0.5]),
)
RULES = st.builds(
    WatchRules,
    best=st.none() | WATCHES,
    stopping=st.none() | WATCHES,
    plateau=st.none()
    | st.builds(
        Plateau,
        metric=st.just("cost"),
        mode=st.sampled_from(["min", "max"]),
        patience=st.integers(1, 3),
        factor=st.just(0.5),
        least=st.just(0.0),
    ),
)
SCHEDULE = Schedule(num_records=40, num_test=4, batch_size=4, num_slices=4, epochs=3)
"""Ten steps an epoch, eleven ticks."""


def all_of(rules: WatchRules, values: list[float], begin: WatchStanding | None = None) -> list[WatchStanding]:
    """What there is before the first evaluation, and after each: one is made every 10 ticks."""
    standings = [begin or WatchStanding(rules=rules)]
    for number, value in enumerate(values, 1):
        standings.append(standings[-1].after(10 * number, 9 * number, {"cost": value}))
    return standings


@given(RULES, VALUES, st.integers(0, 30))
def test_it_goes_on_from_anywhere(rules: WatchRules, values: list[float], number: int) -> None:
    """As a manifest, a journal and a message have it: with the same bits."""
    standings = all_of(rules, values)
    middle = standings[min(number, len(values))]
    for data in (msgspec.json.encode(middle), msgspec.msgpack.encode(middle)):
        decode = msgspec.json.decode if data[:1] == b"{" else msgspec.msgpack.decode
        again = decode(data, type=WatchStanding)
        for count, value in enumerate(values[number:], number + 1):
            again = again.after(10 * count, 9 * count, {"cost": value})
        assert again == standings[-1]
    assert middle.by(rules) == middle


@given(WATCHES, VALUES)
def test_the_best_is_the_first_of_the_best(watch: Watch, values: list[float]) -> None:
    watch = msgspec.structs.replace(watch, least_gain=0.0)
    best = all_of(WatchRules(best=watch), values)[-1].best
    numbers = [value for value in values if math.isfinite(value)]
    if not numbers:
        assert (best.best, best.step, best.waited) == (None, 0, len(values))
    else:
        expected = min(numbers) if watch.mode == "min" else max(numbers)
        assert (best.best, best.step) == (expected, 9 * (values.index(expected) + 1))
        assert best.waited == len(values) - values.index(expected) - 1


@given(WATCHES, VALUES)
def test_a_run_stops_after_so_many_evaluations_without_a_gain(watch: Watch, values: list[float]) -> None:
    standings = all_of(WatchRules(stopping=watch), values)
    for number, standing in enumerate(standings):
        assert standing.stops(standing.tick + 1) == (standing.stopping.waited >= watch.patience)
        assert not standing.stops(standing.tick + 2), "only with the evaluation itself"
        if number and standing.stops(standing.tick + 1):
            assert "cost" in standing.why_stopped()


@given(RULES, VALUES)
def test_the_learning_rate_falls_once_for_each_row_of_them(rules: WatchRules, values: list[float]) -> None:
    standings = all_of(rules, values)
    for before, after in zip(standings, standings[1:], strict=False):
        falls = rules.plateau is not None and before.plateau.waited + 1 == rules.plateau.patience
        gained = after.plateau.step == 9 * (standings.index(after)) and rules.plateau is not None
        assert after.scale == (before.scale * 0.5 if falls and not gained else before.scale)


@pytest.mark.parametrize(("lr", "scale", "expected"), [(0.1, 1, 0.1), (0.1, 0.5, 0.05), (0.1, 0.01, 0.02)])
def test_the_learning_rate_has_a_least(lr: float, scale: float, expected: float) -> None:
    rate = ef.lr.on_plateau(lr, "cost", patience=1, mode="min", least=0.02)
    assert rate.plateau.scaled(rate(0, 0), scale) == pytest.approx(expected)
    assert rate.plateau.scaled(0.001, scale) == 0.001, "in a warm-up it is lower by itself"


def test_other_rules_begin_anew_where_they_go_by_something_else() -> None:
    cost = Watch(metric="cost", mode="min", patience=2)
    before = all_of(WatchRules(best=cost, stopping=cost), [3.0, 4.0, 5.0])[-1]
    assert before.stops(31)
    patient = msgspec.structs.replace(cost, patience=3)
    after = before.by(WatchRules(best=Watch(metric="auc", mode="max"), stopping=patient))
    assert not after.stops(31) and after.stopping == before.stopping
    assert (after.best.best, after.tick) == (None, 30)


def test_what_the_master_has_to_know() -> None:
    watch = Watch(metric="cost", mode="min", patience=1)
    rules = WatchRules(stopping=watch)
    standings = Standings()
    assert standings.know(25), "nobody has said that there are rules"
    standings.go_by(rules, SCHEDULE)
    standings.begin(0)
    first = WatchStanding(rules=rules).after(10, 10, {"cost": 1.0})
    second = first.after(21, 20, {"cost": 2.0})
    assert standings.know(10) and not standings.know(11) and not standings.stop(10)
    assert standings.learn(first) and not standings.learn(first)
    assert standings.know(21) and not standings.know(22)
    assert standings.learn(second) and standings.stop(22) and not standings.stop(11)
    standings.go_back_to(15)
    assert standings.at(15) == first and not standings.know(22)
    assert not standings.learn(second), "it has been told of before"
    standings.settle(23)
    assert standings.all == (second,)
    later = Standings(standings.all)
    later.go_by(rules, SCHEDULE)
    assert later.stop(22) and not later.know(21)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: ef.early_stopping("auc", 3, "best"), "mode must be 'min' or 'max'"),
        (lambda: ef.early_stopping("auc", 0, "max"), "patience must be a whole number > 0"),
        (lambda: ef.early_stopping("auc", 3, "max", least_gain=math.nan), "least_gain must be"),
        (lambda: ef.keep_best(print, "max"), "metric must be the name of a metric"),  # type: ignore[arg-type]
        (lambda: ef.lr.on_plateau(0.1, "auc", patience=1, mode="max", factor=2), "factor must be"),
        (lambda: ef.lr.on_plateau(-1, "auc", patience=1, mode="max"), "then must be a number >= 0"),
        (
            lambda: ef.lr.warmup(3, ef.lr.on_plateau(1, "auc", patience=1, mode="max")),
            "put it the other way round",
        ),
    ],
)
def test_wrong_use(wrong: object, text: str) -> None:
    assert callable(wrong)
    with pytest.raises(ProgramError, match=text):
        wrong()


def test_a_metric_that_there_is_not() -> None:
    rules = WatchRules(stopping=ef.early_stopping("acuracy", 3, "max"))
    known = "early_stopping goes by 'acuracy', which evaluations do not have; choose cost or accuracy"
    assert rules.problem(("accuracy",), tests=True) == known
    assert 'data() returns no "test" source' in rules.problem(("accuracy",), tests=False)
    assert not WatchRules().problem((), tests=False)
