"""Time limits that are shorter than the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elasticflow.master.members import number_of

from .conftest import SlurmRun

ONE_MINUTE = {"time": "1", "leader_time": "1"}


def test_leader_and_workers_have_a_minute_each(
    submit: Callable[..., SlurmRun], undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes 80 s at least: 48 steps of 4 slices of 0.4 s each."""
    monkeypatch.setenv("SLICE_S", "0.4")
    run = submit("small_torch.py", "--workers", 2, slurm=ONE_MINUTE)
    assert run.digest() == undisturbed
    report = run.report()
    assert report.master.incarnation >= 2
    texts = [event.text for event in report.events]
    assert any("another master takes over; all that was done is committed" in text for text in texts), texts
    assert sum("its time limit is near" in text for text in texts) >= 2, texts
    assert not any("reached its time limit" in text for text in texts), texts
    assert max(number_of(text.split()[0]) for text in texts if " has joined" in text) >= 4, texts
    run.leaves_nothing()
