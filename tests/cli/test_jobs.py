"""Runs that are listed, and the one that is meant by a name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticflow.cli import folders, jobs
from elasticflow.cli.main import main
from elasticflow.cluster.index import IndexEntry
from elasticflow.errors import EXIT_UNKNOWN, UnknownError
from elasticflow.run.config import make
from elasticflow.run.folder import RunDir, publish
from tests.telling import report_of


class Cloud:
    """A cluster's index. known: its entries, the newest first. away: it does not answer after those."""

    def __init__(self) -> None:
        self.known: list[IndexEntry] = []
        self.away = False

    def entries(self, text: str) -> Iterator[IndexEntry]:
        yield from (entry for entry in self.known if text in ("", entry.id, entry.name))
        if self.away:
            raise UnknownError("the cloud does not answer")

    def unasked(self) -> str:
        return ""


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Cloud]:
    found = Cloud(), Cloud()
    for module in (folders, jobs):
        monkeypatch.setattr(module, "CLUSTERS", ("a", "b"))
        monkeypatch.setattr(module, "load_cluster", lambda name, what: found["ab".index(name)])
    return found


def ended(path: Path, state: str) -> str:
    """A run that has ended so; "": that was killed."""
    run = RunDir(path)
    run.create(make(None, {"program": "x.py"}))
    if state:
        publish(run.report, report_of(state, "so it was"))
    return str(path)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, SimpleNamespace]:
    code = main(["jobs", *words, "--json"])
    return code, SimpleNamespace(**json.loads(capsys.readouterr().out))


def test_the_newest_of_all_clusters_comes_first(
    tmp_path: Path, clouds: tuple[Cloud, Cloud], capsys: pytest.CaptureFixture[str]
) -> None:
    clouds[0].known = [
        IndexEntry("3", "clicks", ended(tmp_path / "c", ""), 300.0),
        IndexEntry("1", "clicks", ended(tmp_path / "a", "finished"), 100.0),
    ]
    clouds[1].known = [IndexEntry("2", "words", ended(tmp_path / "b", "failed"), 200.0)]
    clouds[1].known += [IndexEntry("0", "clicks", str(tmp_path / "gone"), 50.0)]
    code, found = listed(capsys)
    rows = [(row["id"], row["state"]) for row in found.jobs]
    assert code == 0 and found.unanswered == []
    assert rows == [("3", "killed"), ("2", "failed"), ("1", "finished"), ("0", "absent")]
    assert [row["id"] for row in listed(capsys, "clicks", "--last", "2")[1].jobs] == ["3", "1"]
    assert main(["jobs", "words"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["begun", "job", "name", "state", "run"]
    assert row.split()[2:] == ["2", "words", "failed", str(tmp_path / "b")]


def test_a_list_that_is_not_complete_says_so(
    tmp_path: Path, clouds: tuple[Cloud, Cloud], capsys: pytest.CaptureFixture[str]
) -> None:
    clouds[0].known = [IndexEntry("3", "clicks", ended(tmp_path / "c", "finished"), 300.0)]
    clouds[1].away = True
    code, found = listed(capsys)
    assert code == EXIT_UNKNOWN and found.unanswered == ["the cloud does not answer"]
    assert [row["id"] for row in found.jobs] == ["3"]
    assert main(["jobs"]) == EXIT_UNKNOWN
    assert "not complete: the cloud does not answer" in capsys.readouterr().out


def test_of_several_of_one_name_the_newest_is_meant_with_a_word(
    tmp_path: Path, clouds: tuple[Cloud, Cloud], capsys: pytest.CaptureFixture[str]
) -> None:
    clouds[0].known = [IndexEntry("1", "clicks", ended(tmp_path / "a", "failed"), 100.0)]
    assert main(["status", "clicks", "--json"]) == 0
    assert capsys.readouterr().err == ""
    clouds[1].known = [IndexEntry("2", "clicks", ended(tmp_path / "b", ""), 200.0)]
    assert main(["status", "clicks", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["state"] == "killed"
    assert f"this is the newest, {tmp_path / 'b'}. 'elasticflow jobs clicks' lists them" in told.err


def test_a_name_that_nobody_can_be_asked_about(
    clouds: tuple[Cloud, Cloud], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "clicks", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "absent"
    clouds[1].away = True
    assert main(["status", "clicks", "--json"]) == EXIT_UNKNOWN
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "unknown" and "the cloud does not answer" in told["text"]
