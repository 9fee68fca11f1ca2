"""When slices are overdue: by medians, so that one outlier moves nothing."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow_ps.lateness import HISTORY, PATIENCE_S, PATIENCE_SLICES, Lateness

SECONDS = st.floats(0.001, 10.0)


def lateness(**slice_s: float) -> Lateness:
    known = Lateness()
    for worker, seconds in slice_s.items():
        known.record(worker, seconds)
    return known


def test_nothing_known_is_never_overdue() -> None:
    assert lateness().due_s("anna", 5.0, 2) == float("inf")


@given(st.lists(SECONDS, min_size=1, max_size=3 * HISTORY), st.integers(0, 8))
def test_the_median_of_the_latest_counts(history: list[float], num_slices: int) -> None:
    known = Lateness()
    for seconds in history:
        known.record("anna", seconds)
    middle = median(history[-HISTORY:])
    patience = max(PATIENCE_SLICES * middle, PATIENCE_S)
    assert known.due_s("anna", 100.0, num_slices) == pytest.approx(100.0 + num_slices * middle + patience)


def test_an_hour_in_a_stopped_process_moves_nothing() -> None:
    known = lateness(anna=0.1)
    before = known.due_s("anna", 0.0, 4)
    known.record("anna", 0.1)
    known.record("anna", 3600.0)
    assert known.due_s("anna", 0.0, 4) == before


def test_a_newcomer_is_judged_by_the_others() -> None:
    assert lateness(anna=0.1, berta=0.2, carla=0.9).due_s("dora", 0.0, 1) == pytest.approx(0.6)


def test_who_has_left_counts_no_more() -> None:
    known = lateness(anna=0.1, berta=9.0)
    known.forget("berta")
    assert known.due_s("carla", 0.0, 1) == lateness(anna=0.1).due_s("carla", 0.0, 1)
    known.forget("anna")
    assert known.due_s("carla", 0.0, 1) == float("inf")


def test_the_way_there_and_back_counts_for_those_who_wait_for_a_version() -> None:
    known = lateness(anna=0.01, berta=0.01)
    before = known.due_s("anna", 5.0, 2, lags=True)
    assert before == known.due_s("anna", 5.0, 2)
    for lag_s in (0.2, 0.3, 60.0, -0.1):  # the median of 0, 0.2, 0.3 and 60
        known.record_lag("anna", lag_s)
    assert known.due_s("anna", 5.0, 2, lags=True) == pytest.approx(before + 0.25)
    assert known.due_s("anna", 5.0, 2) == before
    assert known.due_s("berta", 5.0, 2, lags=True) == pytest.approx(before + 0.25), "as the others"
    known.forget("anna")
    assert known.due_s("berta", 5.0, 2, lags=True) == before


@given(SECONDS, st.integers(1, 8))
def test_more_slices_take_longer(seconds: float, num_slices: int) -> None:
    known = lateness(anna=seconds)
    assert known.due_s("anna", 0.0, num_slices) < known.due_s("anna", 0.0, num_slices + 1)
