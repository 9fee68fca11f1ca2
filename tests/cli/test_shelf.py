"""What the page tells of a service's runs between the folders that they have and what the service says."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
from pathlib import Path

import pytest

from elasticflow.cli.ui import shelf as shelves
from elasticflow.cli.ui.serving import ASSETS, UiServer
from elasticflow.cli.ui.shelf import FolderShelf, ServiceShelf
from elasticflow.process.texts import as_json
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


def test_a_run_whose_name_is_no_text_is_found_by_the_name_that_is_shown(tmp_path: Path) -> None:
    ended(tmp_path / os.fsdecode(b"r\xfcn"))
    shelf = FolderShelf(str(tmp_path), trust=True)
    (told,) = json.loads(as_json([each.name for each in shelf.summaries()]))
    assert shelf.run(told).path == tmp_path / os.fsdecode(b"r\xfcn")


def test_an_error_that_nobody_thought_of_is_an_answer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = FolderShelf(str(tmp_path), trust=True)
    monkeypatch.setattr(shelf, "runs", lambda: {}["step"])
    server = UiServer(("127.0.0.1", 0), "token", shelf, steers=False)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        asking = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        asking.request("GET", "/api/runs", headers={"Cookie": f"{server.cookie}=token"})
        answer = asking.getresponse()
        assert answer.status == 500 and b"KeyError: 'step'" in answer.read()
        asking.close()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_the_page_may_be_seen_below_a_prefix_beside_other_peoples(tmp_path: Path) -> None:
    server = UiServer(("127.0.0.1", 0), "token", FolderShelf(str(tmp_path), trust=True), steers=False)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        asking = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        asking.request("GET", "/?token=token")
        answer = asking.getresponse()
        assert answer.status == 303 and answer.getheader("Location") == "./"
        assert "path" not in (answer.getheader("Set-Cookie") or "").lower(), (
            "others of that host would be told"
        )
        answer.read()
        for path in ASSETS:
            asking.request("GET", path, headers={"Cookie": f"{server.cookie}=token"})
            assert not re.search(
                rb"""(src=|href=|from |ask\(|EventSource\()["'`]/""", asking.getresponse().read()
            )
        asking.close()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_one_run_of_somebody_elses_is_shown_as_that_person_shows_it(tmp_path: Path) -> None:
    ended(tmp_path / "theirs")
    for path in (tmp_path / "theirs", *(tmp_path / "theirs").rglob("*")):
        os.chown(path, 12345, 12345)
    shelf = FolderShelf.of(str(tmp_path / "theirs"), trust=False, is_folder=False)
    (told,) = shelf.summaries()
    assert (told.name, told.summary.state, told.summary.digest) == ("theirs", "finished", None)
