"""Deadlines: what is told of them, when, and in the end."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.cli.progress import deadline_line, figures
from elasticflow.cli.report import page
from elasticflow.cli.runs import as_text
from elasticflow.master.actions import EndAction
from elasticflow.master.members import RunState
from elasticflow.master.outlook import HOLD_S, Outlook, look
from elasticflow.run.config import Config
from elasticflow.run.telling import LiveStatus, Report

from ..telling import Told

STEP_S = 2.0
"""Of the 30 steps that a told run has."""


def run_with(left_s: float, **settings: Any) -> Told:
    """A run whose deadline is so far away at its start; its wall clock begins at 1:00 on 1970-01-01."""
    told = Told()
    due = datetime.fromtimestamp(3600 + left_s, timezone.utc).isoformat()
    told.config = Config(deadline=due, **settings)
    told.begin(None)
    told.state.has("worker-1", "worker-2")
    return told


def steps(told: Told, first: int, last: int, step_s: float = STEP_S) -> list[str]:
    """Makes steps of the first epoch; returns what was told meanwhile."""
    told_of = []
    for version in range(first, last):
        told.progress(version)
        told.after(step_s)
        if note := told.story.outlook():
            told_of.append(f"{note.kind}: {note.text}")
    return told_of


def test_an_eta_against_the_deadline() -> None:
    told = run_with(3600)
    assert "ETA too early to tell, deadline 02:00" in figures(told.status())
    assert steps(told, 0, 5) == []
    status = told.status()
    assert status.eta_s == pytest.approx(26 * STEP_S) and status.eta_at == pytest.approx(3662)
    assert "ETA 01:01, 59 min before the deadline 02:00" in figures(status)
    assert "ETA 01:01" in as_text(status) and "time limit" not in as_text(status)
    assert status.met_deadline is None and status.deadline_at == 7200
    assert any(
        line.startswith("  ETA      01:01, 59 min")
        for line in page(LiveStatus(**msgspec.structs.asdict(status), text=""))
    )


def test_a_slow_run_is_told_of_once_and_again_when_it_is_in_time() -> None:
    told = run_with(600)
    assert steps(told, 0, 4) == []
    slow = steps(told, 4, 7, 40.0)
    assert len(slow) == 1 and slow[0].startswith("warning: ETA 01:1"), slow
    assert "after the deadline 01:10" in slow[0]
    told.next_master()
    fast = steps(told, 7, 30)
    assert len(fast) == 1 and fast[0].startswith("info: ETA 01:0"), fast
    assert fast[0].endswith("min before the deadline 01:10 again")


def test_what_lasts_only_for_a_moment_is_not_told() -> None:
    told = run_with(100)
    assert steps(told, 0, 5) == []
    assert steps(told, 5, 7, HOLD_S / 4) == [] and steps(told, 7, 20, 0.5) == []


def test_another_size_has_another_speed() -> None:
    told = run_with(3600)
    steps(told, 0, 5)
    told.state.has("worker-1")
    told.story.keep_usage(told.state)
    assert told.status().eta_s is None, "nobody knows how fast one is"
    steps(told, 5, 8, 2 * STEP_S)
    assert told.status().eta_s > 20 * STEP_S * 1.5


def test_a_run_that_stands_still_gets_later() -> None:
    told = run_with(3600)
    steps(told, 0, 5)
    before_s = told.status().eta_s
    told.after(5.0)
    assert told.status().eta_s == pytest.approx(before_s, rel=0.5)
    assert told.after(600.0).status().eta_s > 10 * before_s


def test_the_deadline_passes() -> None:
    told = run_with(20)
    steps(told, 0, 5)
    told.after(15)
    note = told.story.outlook()
    assert note and note.kind == "warning" and note.text.startswith("the deadline 01:00 is over")
    assert told.after(5).story.outlook() is None and told.status().met_deadline is False
    told.next_master()
    assert told.story.outlook() is None, "it has been told"


def reported(told: Told, state: RunState) -> Report:
    return told.story.report(told.state, EndAction(state, "this is the end"))


@pytest.mark.parametrize(
    ("state", "after_s", "met", "line"),
    [
        (RunState.FINISHED, 60, True, "deadline met: done at 01:01, 9 min before the deadline 01:10"),
        (RunState.FINISHED, 660, False, "deadline missed: done at 01:11, 1 min after the deadline 01:10"),
        (RunState.STOPPED, 60, None, "deadline open: it ended, not done, at 01:01, 9 min before"),
        (RunState.FAILED, 660, False, "deadline missed: it ended, not done, at 01:11, 1 min after"),
    ],
)  # fmt: skip
def test_what_became_of_a_deadline(state: RunState, after_s: float, met: bool | None, line: str) -> None:
    report = reported(run_with(600).after(after_s), state)
    assert report.met_deadline is met
    assert report.finished_at == (3600 + after_s if state is RunState.FINISHED else None)
    assert deadline_line(report).startswith(line)
    assert any(line in each for each in page(report))


def test_no_deadline_no_words() -> None:
    report = reported(Told().after(60), RunState.FINISHED)
    assert (report.deadline, report.deadline_at, report.met_deadline) == (None, None, None)
    assert report.finished_at == 3660 and deadline_line(report) == ""


def test_a_time_limit_counts_from_the_first_masters_start() -> None:
    told = run_with(3600, time_limit="10m")
    assert told.story.stop_at_s == pytest.approx(1600)
    told.after(100)
    assert "time limit: 8 min of 10 min left" in as_text(told.status())
    told.next_master()
    assert told.story.stop_at_s == pytest.approx(1600)
    assert Told().story.stop_at_s is None


@given(some.lists(some.tuples(some.floats(0.5, 20), some.none() | some.booleans()), max_size=60))
def test_what_is_told_held_for_long_enough(seen: list[tuple[float, bool | None]]) -> None:
    """And what does not last is never told."""
    outlook, now_s = Outlook(), 0.0
    since_s, last = 0.0, None
    for seconds, late in seen:
        now_s += seconds
        if late is None or late != last:
            since_s, last = now_s, late
        before = outlook
        eta_s = None if late is None else 200.0 if late else 50.0
        outlook = look(before, left_s=100.0, eta_s=eta_s, now_s=now_s)
        if outlook.late != before.late:
            assert late is outlook.late and now_s - since_s >= HOLD_S
        elif late is not None and now_s - since_s >= HOLD_S:
            assert outlook.late is late
