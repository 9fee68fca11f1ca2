"""Metrics of sums: those of the whole, however it is cut into slices, and wherever each is added."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elasticflow as ef
from elasticflow.data.opening import PartOfTests
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import first_metrics, without_metrics
from elasticflow.training import metrics as me


def of_slices(made, columns, borders, num_test: int = 0, order=None) -> float:
    """The metric of records that are cut at these borders."""
    size = len(columns[0])
    places = [0, *sorted(borders), size]
    (measure,) = me.measures_of({"m": made(*columns)}, num_test or size)
    parts = []
    for start, stop in zip(places, places[1:], strict=False):
        sums = np.zeros(measure.size)
        me.add(measure, made(*(c[start:stop] for c in columns)).inputs, start, stop, sums)
        parts.append(sums)
    return me.final(measure, sum(parts, np.zeros(measure.size)))["m"]


def of_pairs(scores, targets) -> float:
    """The share of pairs in order, by looking at each."""
    below, above = scores[targets == 0][:, None], scores[targets == 1][None]
    return float(((above > below) + (above == below) / 2).mean())


@settings(max_examples=100, database=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 60), borders=st.lists(st.integers(0, 60), max_size=5))
def test_an_area_under_the_curve_is_that_of_all_pairs(seed, size, borders):
    rng = np.random.default_rng(seed)
    scores, targets = rng.integers(0, 9, size).astype(np.float32) - 4, rng.integers(0, 2, size)
    targets[:2] = 0, 1
    borders = [border for border in borders if border < size]
    assert of_slices(me.auc, (scores, targets), borders) == pytest.approx(
        of_pairs(scores, targets), abs=1e-12
    )


def test_of_more_records_than_there_are_places_it_is_made_of_bins():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, 3000)
    scores = np.clip(rng.normal(0.4 + 0.2 * targets, 0.2), 0, 1)
    found = of_slices(me.auc, (scores, targets), [1000], num_test=me.BINS + 1)
    assert found == pytest.approx(of_pairs(scores, targets), abs=1e-4)
    (measure,) = me.measures_of({"auc": me.auc(scores, targets)}, me.BINS + 1)
    assert "auc is made of 65,536 bins of scores from 0 to 1" in me.roughness(measure)
    (measure,) = me.measures_of({"auc": me.auc(scores, targets)}, me.BINS)
    assert me.roughness(measure) == "" and measure.exact


def test_those_of_classes_and_numbers_are_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    targets, predictions = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    for name in ("precision", "recall", "f1"):
        made = getattr(me, name)
        theirs = getattr(sklearn, f"{name}_score")
        found = of_slices(lambda p, t, m=made: m(p, t, classes=5), (predictions, targets), [50, 120])
        assert found == pytest.approx(theirs(targets, predictions, average="macro"))
        found = of_slices(made, ((predictions > 1) * 0.9, targets > 1), [50, 120])
        assert found == pytest.approx(theirs(targets > 1, predictions > 1))
    exact = rng.normal(size=200)
    guess = exact + rng.normal(size=200)
    assert of_slices(me.r2, (guess, exact), [7]) == pytest.approx(sklearn.r2_score(exact, guess))
    squared = sklearn.mean_squared_error(exact, guess)
    assert of_slices(me.rmse, (guess[:, None], exact), [7]) == pytest.approx(squared**0.5)
    assert of_slices(me.mean, (guess, exact**2), []) == pytest.approx(np.average(guess, weights=exact**2))
    by_class = rng.normal(size=(200, 4))
    right = (by_class.argmax(1) == targets).mean()
    assert of_slices(me.accuracy, (by_class, targets), [3, 4, 5]) == pytest.approx(right)


def test_where_there_is_no_number_it_is_nan():
    assert np.isnan(of_slices(me.auc, (np.ones(3), np.ones(3)), []))
    assert np.isnan(of_slices(me.auc, (np.array([np.nan, 1.0]), np.array([0, 1])), []))
    assert of_slices(me.f1, (np.zeros(3), np.zeros(3)), []) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: of_slices(me.accuracy, (np.ones(3), np.ones((3, 2))), []), r"shape \(3,\), \(3, 2\)"),
        (lambda: of_slices(me.f1, (np.ones(3, int), np.full(3, 2)), []), "classes other than 0 to 1"),
        (
            lambda: of_slices(me.auc, (np.array([0, 1]), np.array([0.3, 0.7])), []),
            "scores, targets., in this",
        ),
        (lambda: of_slices(me.auc, (np.ones(3), np.array([1, -1, 1])), []), "targets other than 0 and 1"),
        (lambda: me.f1([1], [1], classes=1), "a whole number from 2 to 256"),
        (lambda: me.auc([1], [1], low=1.0), "low must be less than high"),
        (lambda: me.measures_of({str(n): me.auc([1], [1]) for n in range(5)}, 1 << 20), "leave some out"),
    ],
)
def test_what_cannot_be_is_refused(make, words: str):
    with pytest.raises(ProgramError, match=words):
        make()


def test_of_several_sources_each_has_its_own():
    parts = [PartOfTests("clean", 0, 3), PartOfTests("noisy", 3, 7)]
    made = {"auc": me.auc(np.array([0.1, 0.9]), np.array([0, 1])), "loss": 0.5}
    metrics = first_metrics(made, 2, parts)
    assert metrics.names == ("auc", "loss")
    assert metrics.told == (
        "clean/cost", "clean/auc", "clean/loss", "noisy/cost", "noisy/auc", "noisy/loss",
    )  # fmt: skip
    assert [(each.name, each.start, each.size) for each in metrics.summed] == [
        ("clean/auc", 0, 6),
        ("noisy/auc", 6, 8),
    ]
    assert without_metrics(parts).told == ("clean/cost", "noisy/cost") and not without_metrics(parts).summed
    alone = first_metrics(made, 2, [PartOfTests("", 0, 7)])
    assert alone.told == alone.names and alone.summed == alone.measures


def test_a_program_finds_them():
    assert ef.metrics.auc is me.auc


class KerasLikeAccuracy:
    def update_state(self, targets, predictions): ...


class TorchMetricsLikeAccuracy:
    def update(self, predictions, targets): ...

    def compute(self): ...


@pytest.mark.parametrize("kind", [KerasLikeAccuracy, TorchMetricsLikeAccuracy])
def test_objects_with_a_state_of_their_own_are_refused_with_the_way(kind):
    with pytest.raises(ProgramError, match=rf"'acc' a {kind.__name__}, which cannot .* ef\.metrics\.auc"):
        first_metrics({"acc": kind()}, 2, [PartOfTests("", 0, 8)])
