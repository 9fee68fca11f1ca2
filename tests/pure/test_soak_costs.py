"""What the soak benchmark makes of workers' timelines, on ones that were thought up."""

from __future__ import annotations

import pytest

from benchmarks.jobs import Interval
from benchmarks.soak_costs import gap, idle_of_others, recovery

STEP_S = 0.02


def _steps(first: int, stop: int, since_s: float, step_s: float = STEP_S) -> list[Interval]:
    """Of each tick three quarters computing, one quarter waiting."""
    found = []
    for tick in range(first, stop):
        begin_s = since_s + (tick - first) * step_s
        found.append(Interval("computing", tick, begin_s, begin_s + 0.75 * step_s))
        found.append(Interval("waiting", tick, begin_s + 0.75 * step_s, begin_s + step_s))
    return found


def test_a_worker_is_killed_and_another_waits_for_its_slices() -> None:
    before = _steps(0, 100, 0.0)
    at_s = 2.0
    here = [
        Interval("computing", 100, at_s, at_s + 0.015),
        Interval("waiting", 100, at_s + 0.015, at_s + 0.050),
        Interval("computing", 100, at_s + 0.050, at_s + 0.060),  # a share of what is missing
        Interval("waiting", 100, at_s + 0.060, at_s + 0.100),  # for the others' shares
    ]
    timeline = [*before, *here, *_steps(101, 150, at_s + 0.1)]
    assert idle_of_others({"a": timeline}, 2.001, 10.0) == pytest.approx(0.035 - 0.005)
    assert idle_of_others({"a": timeline, "b": _steps(0, 200, 0.0)}, 2.001, 10.0) == pytest.approx(0.03)
    assert idle_of_others({}, 2.001, 10.0) is None
    assert idle_of_others({"a": before}, 20.0, 30.0) is None


def test_nobody_notices_that_the_master_has_died() -> None:
    timeline = _steps(0, 200, 0.0)
    assert gap({"a": timeline}, 2.0, 3.5) == pytest.approx(0, abs=1e-9)
    stalled = [*_steps(0, 100, 0.0), *_steps(100, 150, 2.3)]
    assert gap({"a": timeline, "b": stalled}, 2.0, 3.5) == pytest.approx(0.3)
    assert gap({}, 2.0, 3.5) is None


def test_servers_are_lost_and_some_steps_with_them() -> None:
    """Killed in tick 100; one worker has come to 101. All go on from version 95, 0.4 s later."""
    first = [*_steps(0, 101, 0.0), Interval("recovering", 100, 2.02, 2.4), *_steps(95, 150, 2.4)]
    second = [*_steps(0, 102, 0.0), Interval("recovering", 101, 2.04, 2.41), *_steps(95, 150, 2.41)]
    found = recovery({"a": first, "b": second, "c": []}, 2.01, 10.0)
    assert found is not None
    assert found.seconds == pytest.approx(2.4 + STEP_S - 2.01)
    assert found.lost == 101 - 95


def test_no_step_is_lost_when_the_version_at_hand_could_be_kept() -> None:
    timeline = [*_steps(0, 101, 0.0), Interval("recovering", 100, 2.02, 2.5), *_steps(100, 150, 2.5)]
    found = recovery({"a": timeline}, 2.01, 10.0)
    assert found is not None
    assert found.lost == 0
    assert found.seconds == pytest.approx(2.5 + STEP_S - 2.01)


def test_newcomers_and_pauses_are_no_recovery() -> None:
    paused = [*_steps(0, 101, 0.0), *_steps(101, 150, 2.5)]
    assert recovery({"a": paused, "b": _steps(110, 150, 2.7)}, 2.01, 10.0) is None


def test_all_processes_are_new() -> None:
    """A worker's name is another process's after a resume: it begins where the checkpoint was."""
    found = recovery({"a": [*_steps(0, 101, 0.0), *_steps(60, 150, 9.0)]}, 2.01, 20.0)
    assert found is not None
    assert found.lost == 40
    assert found.seconds == pytest.approx(9.0 + STEP_S - 2.01)


def test_a_run_that_does_not_recover() -> None:
    assert recovery({"a": _steps(0, 101, 0.0)}, 2.1, 10.0) is None
