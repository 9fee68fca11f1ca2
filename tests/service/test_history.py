"""A journal, read again: what happened, and the same as jobs for the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticflow.cli.main import main
from elasticflow.errors import RunError
from elasticflow.service import happenings as hp
from elasticflow.service.history import DeadlineTally, happened, jobs_of, read_history
from elasticflow.service.journal import ServiceJournal

from .test_state import BEGIN_S, RULES, measured, task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a service that was promised one, refused one, lost a node, and was told that one does not matter."""
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([measured("kept", 300, BEGIN_S + 200)], BEGIN_S)
    journal.handle([measured("hopeless", 3000, BEGIN_S + 200)], BEGIN_S + 1)
    journal.handle([hp.NodeSeen(node=3, up=False)], BEGIN_S + 5)
    journal.handle([measured("unwanted", 300, BEGIN_S + 500)], BEGIN_S + 6)
    journal.close()
    journal = ServiceJournal(tmp_path, RULES)
    journal.handle([hp.NodeSeen(node=3, up=True)], BEGIN_S + 15)
    journal.handle([hp.HandedIn(task=task("unknown", BEGIN_S + 900))], BEGIN_S + 16)
    journal.handle(
        [hp.Cancelled(name="unwanted", by="ann"), hp.Advanced(done={"unwanted": 20})], BEGIN_S + 20
    )
    journal.handle([hp.Over(name="kept", state="finished")], BEGIN_S + 80)
    journal.close()
    return tmp_path


def test_what_happened_is_counted_and_told_to_the_simulator(folder: Path) -> None:
    history = read_history(folder)
    assert happened(history) == DeadlineTally(deadlines=2, promised=1, met=1, late=0)
    jobs, unknown = jobs_of(history)
    assert unknown == ["unknown"]
    told = {job.job_id: (job.submit_s, job.deadline_s, job.iterations) for job in jobs}
    assert told == {
        "kept": (0.0, 200.0, 300.0), "hopeless": (1.0, 199.0 + 1.0, 3000.0), "unwanted": (6.0, None, 20.0)
    }  # fmt: skip
    assert [(one.node, one.start_s, one.end_s) for one in history.outages] == [(3, 5.0, 15.0)]


def test_each_way_to_name_it_is_the_same_and_nothing_is_written(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    newest = max((folder / "journal").glob("*.jsonl"))
    found = [read_history(path) for path in (folder, folder / "journal", newest)]
    assert len({(one.began_s, one.last_s, one.outages) for one in found}) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_past_is_simulated_beside_another_size_and_policy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["happened"]["met"] == told["simulated"]["met"] == 1 and "instead" not in told
    assert main(["replay", str(folder), "--nodes", "64", "--policy", "edf-admission"]) == 0
    shown = capsys.readouterr()
    assert "elastic on 4 nodes of 2" in shown.out and "edf-admission on 64 nodes of 2: 1 of 2" in shown.out
    assert "left out, nothing was measured of them: unknown" in shown.err


def test_what_is_no_journal_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no journal"):
        read_history(empty)
    assert main(["replay", str(tmp_path / "nowhere" / "x")]) == 1
    assert "holds no journal" in capsys.readouterr().err
    assert main(["replay", str(folder), "--policy", "luck"]) == 1
    assert "no policy 'luck'" in capsys.readouterr().err
    assert main(["replay", str(folder), "--nodes", "-1"]) == 1
    assert "--nodes -1: there must be one" in capsys.readouterr().err
