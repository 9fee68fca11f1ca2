"""What the page tells of a service's runs between the folders that they have and what the service says."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cli.ui import shelf as shelves
from elasticflow.cli.ui.shelf import FolderShelf, ServiceShelf
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.service import talk

from .fake_master import new_run
from .test_history import ended


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


def test_runs_that_are_over_are_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "FRESH_S", 0.0)
    looked: list[str] = []

    def look(run: RunDir, trust: bool) -> shelves.RunSummary:
        looked.append(run.path.name)
        return summary_of(run, trust)

    summary_of = shelves.summary_of
    monkeypatch.setattr(shelves, "summary_of", look)
    ended(tmp_path / "over")
    new_run(tmp_path / "killed")
    shelf = FolderShelf(str(tmp_path), trust=True)
    first = shelf.summaries()
    shelf.summaries()  # to look at a digest writes it down, which is a change
    looked.clear()
    told = shelf.summaries()
    assert looked == ["killed"]
    assert [(each.name, each.summary.digest) for each in told] == [
        (each.name, each.summary.digest) for each in first
    ]

    looked.clear()
    RunDir(tmp_path / "over").create(Config(program="x.py", epochs=7))  # as whoever resumes it does
    shelf.summaries()
    assert "over" in looked


def test_a_run_that_nobody_could_have_thought_of_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(run: RunDir, trust: bool) -> shelves.RunSummary:
        if run.path.name == "odd":
            raise KeyError("step")
        return summary_of(run, trust)

    summary_of = shelves.summary_of
    monkeypatch.setattr(shelves, "summary_of", look)
    for name in ("odd", "over"):
        ended(tmp_path / name)
    told = {each.name: each.summary for each in FolderShelf(str(tmp_path), trust=True).summaries()}
    assert (told["odd"].state, told["over"].state) == ("unreadable", "finished")
    assert "KeyError" in told["odd"].text and "KeyError" in capsys.readouterr().err


def test_a_run_is_called_as_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(tmp_path / "over")
    for inside, named in ((tmp_path / "over", "."), (tmp_path / "over" / "checkpoints", "..")):
        monkeypatch.chdir(inside)
        assert list(FolderShelf.of(named, trust=True, is_folder=False).runs()) == ["over"]
