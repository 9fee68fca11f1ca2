"""What the page tells of a service's runs between the folders that they have and what the service says."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cli.ui.shelf import ServiceShelf
from elasticflow.service import talk

from .fake_master import new_run


def test_a_task_that_waits_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "patient")
    task = talk.ToldTask(
        name="patient", run=str(run.path), user="me", standing="best effort", state="", said="",
        why="all workers are promised to others", workers=0, held=0, step=0, steps=None, rates={},
        handed_at=0.0, deadline_at=None, promised_at=None, ended_at=None, eta_at=None, earliest_at=None,
    )  # fmt: skip
    monkeypatch.setattr(talk, "ask", lambda folder, question: talk.ServiceAnswer(tasks=[task]))
    shelf = ServiceShelf(tmp_path, trust=True)
    (told,) = shelf.summaries()
    assert (told.summary.state, told.summary.text) == ("waiting", "all workers are promised to others")
    picture = next(shelf.pictures("patient"))
    assert picture is not None and picture.state == "waiting"
    task.state = "failed"
    (told,) = ServiceShelf(tmp_path, trust=True).summaries()
    assert told.summary.state != "waiting"
    last = [picture for picture in ServiceShelf(tmp_path, trust=True).pictures("patient")][-1]
    assert last is not None and last.state != "waiting"
