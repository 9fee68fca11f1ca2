"""Curves fitted to few points: right where the formula holds, careful where it does not, never nonsense."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow.errors import ConfigError
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.fit import fit_curve, powers_of_two
from elasticflow.scheduler.traces import read_profiles

PROFILES = Path(__file__).parents[2] / "benchmarks" / "data" / "scheduler"


def test_a_curve_of_the_formula_is_found_again() -> None:
    def rate(size: int) -> float:
        return 10 / (0.8 / size + 0.15 + 0.04 * math.log2(size))

    fit = fit_curve({size: rate(size) for size in (1, 2, 4, 8)})
    assert all(fit.rate(size) == pytest.approx(rate(size), rel=0.06) for size in (3, 16, 32))
    assert fit.error(16) < 0.15


def test_measured_sizes_stay_as_they_were_measured() -> None:
    measured = {1: 5.0, 2: 9.0, 4: 3.0}
    found = fit_curve(measured).curve(powers_of_two(16))
    assert isinstance(found, Curve) and found.sizes == (1, 2, 4, 8, 16)
    assert {size: found.rate(size) for size in measured} == measured


def test_one_point_is_enough_but_not_trusted() -> None:
    one, three = fit_curve({1: 7.0}), fit_curve({1: 7.0, 2: 13.0, 4: 22.0})
    assert one.rate(1) == pytest.approx(7.0, rel=0.05)
    assert 7.0 < one.rate(4) < 28.0
    assert one.error(8) > three.error(8)
    assert one.error(8) > 0.3


def test_the_further_away_the_less_sure() -> None:
    fit = fit_curve({1: 7.0, 2: 13.0, 4: 22.0})
    errors = [fit.error(size) for size in (8, 16, 32, 64)]
    assert errors == sorted(errors)


def test_the_smallest_measured_size_need_not_be_one() -> None:
    fit = fit_curve({4: 10.0, 8: 19.0, 16: 34.0})
    assert fit.rate(2) == pytest.approx(5.0, rel=0.15)
    assert 34 < fit.rate(32) < 68


def test_noise_counts_less() -> None:
    points = {1: 10.0, 2: 19.0, 4: 36.0, 8: 20.0}
    trusting, knowing = fit_curve(points), fit_curve(points, {8: 2.0})
    assert abs(knowing.rate(4) - 36) < abs(trusting.rate(4) - 36)


def test_beyond_a_size_that_is_slower_nothing_is_believed_to_be_faster() -> None:
    fit = fit_curve({1: 100.0, 2: 40.0})
    assert all(fit.rate(size) <= 40.0 for size in (4, 8, 64))


@pytest.mark.parametrize("points", [{}, {1: 0.0}, {0: 1.0}, {1: float("nan")}, {1: float("inf")}, {2: -1.0}])
def test_what_cannot_be_fitted(points: dict[int, float]) -> None:
    with pytest.raises(ConfigError):
        fit_curve(points)


@given(
    st.dictionaries(st.integers(1, 256), st.floats(1e-3, 1e4), min_size=1, max_size=7),
    st.integers(1, 4096),
)
@settings(max_examples=60)
def test_every_rate_is_a_rate(points: dict[int, float], size: int) -> None:
    fit = fit_curve(points)
    assert 0 < fit.rate(size) < float("inf")
    assert 0 <= fit.error(size) < float("inf")
    assert all(term >= 0 for term in fit.terms)


@pytest.mark.parametrize(
    ("folder", "known", "most", "least"),
    [("throughputs_A100", 2, 0.1, 0.9), ("throughputs_A100", 3, 0.1, 0.9), ("throughputs_T4", 3, 0.25, 0.6)],
)
def test_the_next_doubling_of_real_profiles(folder: str, known: int, most: float, least: float) -> None:
    """The larger sizes are left out; the median error of the next one, see docs/profiles.md."""
    off, within = [], []
    for curve in read_profiles(PROFILES / folder).values():
        if len(curve.sizes) > known:
            fit = fit_curve(dict(zip(curve.sizes[:known], curve.rates[:known], strict=True)))
            size = curve.sizes[known]
            off.append(abs(fit.rate(size) / curve.rate(size) - 1))
            within.append(off[-1] < 2 * fit.error(size))
    assert median(off) < most
    assert sum(within) >= least * len(within)
