"""When failures are too many."""

from __future__ import annotations

import pytest

from elasticflow.master.failures import MANY_GONE, MOST_UNKNOWN, MOST_UNTOLD, Failures, untold_in


def test_who_went_without_a_word_where_others_did_is_tried_apart_first() -> None:
    """The first died before its servers could tell how far they were: so a step seemed to be made since."""
    failures = Failures()
    for reached in (1, 5, 5, 5):
        failures.make_step(reached)
        assert not failures.go(True, 4)
        assert not failures.fail(3)
    assert failures.careful_to == 9
    failures.explain()
    assert (failures.own, failures.careful_to) == (0, -1)


@pytest.mark.parametrize(
    ("step_s", "untold"), [(0.0, MOST_UNTOLD), (0.001, MOST_UNTOLD), (0.3, 4), (60.0, 1)]
)
def test_versions_that_nobody_told_of_are_tried_apart_too(step_s: float, untold: int) -> None:
    failures = Failures()
    failures.make_step(2)
    for _ in range(MANY_GONE):
        failures.go(True, untold_in(step_s))
    assert failures.careful_to == 2 + untold
    failures.make_step(2 + untold)
    assert (failures.gone, failures.careful_to) == (MANY_GONE, 2 + untold), "the deadly one may be the next"
    failures.make_step(3 + untold)
    assert (failures.gone, failures.wordless, failures.careful_to) == (0, 0, -1)


def test_who_goes_on_to_die_when_slices_were_tried_apart_fails() -> None:
    failures = Failures()
    found = []
    for _ in range(MOST_UNKNOWN + 2):
        failures.go(True, 4)
        found.append(failures.fail(2))
    assert found == [False] * MOST_UNKNOWN + [True, True]


@pytest.mark.parametrize("untold", [0, 4])
def test_failures_with_steps_between_them_are_counted_as_ever(untold: int) -> None:
    failures = Failures()
    found = []
    for step in range(5):
        failures.make_step(10 * step)
        failures.go(True, untold)
        found.append(failures.fail(3))
    assert found == [False, False, False, True, True]


def test_servers_may_be_silent_for_longer_each_time_that_giving_them_up_was_in_vain() -> None:
    failures, found = Failures(), []
    for now_s in (10.0, 10.5, 20.0, 40.0):  # two of one host, and then one after the other
        failures.fall_silent(now_s, 2.0)
        found.append(failures.patience)
    assert found == [2, 2, 4, 8]
    failures.make_step(1)
    assert failures.patience == 1
    failures.fall_silent(60.0, 2.0)
    failures.make_step(1)
    assert failures.patience == 2, "what was made before is made again: that says nothing"
