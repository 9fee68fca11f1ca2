"""Runs in a table, and side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow import checkpoint
from elasticflow.cli import digests
from elasticflow.cli.main import main
from elasticflow.cli.watching import show_end
from elasticflow.run.config import make
from elasticflow.run.folder import PastAttempt, RunDir, publish
from elasticflow.run.telling import TAKEN_OVER, ToldBest
from tests.checkpoint.saving import make_manifest, make_model, write_parts
from tests.telling import report_of

from .fake_master import FakeMaster, new_run


def saved(run: RunDir, seed: int, step: int = 10) -> str:
    """A checkpoint of a model that follows from the seed; its digest."""
    model, storage = make_model(seed=seed), run.storage()
    manifest = make_manifest(model, step, write_parts(storage, model, step, 2))
    checkpoint.commit(storage, manifest)
    return checkpoint.digest(storage, manifest)


def ended(
    path: Path, state: str = "finished", *, at_s: float = 1000.0, seed: int = 0, **settings: Any
) -> str:
    """A run that has ended so, with a checkpoint; its digest. at_s: when it began, since 1970."""
    run = RunDir(path)
    run.create(make(None, {"program": "x.py", **settings}))
    evaluation = {"epoch": 1, "step": 10, "cost": 0.5, "accuracy": 0.75 + seed / 100}
    told = report_of(state, "so it was", started_at=at_s, evaluation=evaluation, step=10, checkpoint_step=10)
    publish(run.report, told)
    return saved(run, seed)


def test_a_table_of_all_runs_the_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = ended(tmp_path / "one", at_s=1000)
    two = ended(tmp_path / "two", "stopped", at_s=5000, seed=2)
    killed = RunDir(tmp_path / "three")
    killed.create(make(None, {"program": "x.py"}))
    (tmp_path / "no run").mkdir()
    publish(RunDir(tmp_path / "one").attempts, (PastAttempt(500.0, 60.0),))
    assert main(["runs", str(tmp_path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == "begun run state steps metric digest took worker hours faults".split()
    assert [line.split()[2] for line in lines[:2]] == ["two", "one"] and len(lines) == 4
    assert "stopped" in lines[0] and "accuracy 0.7700" in lines[0] and two[:12] in lines[0]
    assert one[:12] in lines[1] and two not in lines[0]
    assert lines[2].split() == ["three", "killed"] and "its processes were killed" in lines[3]
    assert main(["runs", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["runs"]
    assert [each["digest"] for each in told] == [two, one, None]
    assert told[1]["begun_at"] == 500 and told[1]["evaluation"]["accuracy"] == 0.75
    assert main(["runs", str(tmp_path / "one")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_finished_run_that_is_resumed_keeps_what_it_came_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing left to do, and nothing is evaluated again; nor after fewer steps than before."""
    ended(tmp_path / "one")
    run = RunDir(tmp_path / "one")
    run.end_attempt()
    for step, accuracy in (10, 0.75), (9, None):
        publish(run.report, report_of("finished", "so it was", started_at=2000.0, evaluation=None, step=step))
        assert main(["runs", str(tmp_path), "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["runs"]
        assert (told["evaluation"] or {}).get("accuracy") == accuracy


def test_a_name_of_several_lines_is_on_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended(tmp_path / "run\nfinished")
    ended(tmp_path / "other")
    for words in (["runs", str(tmp_path)], ["compare", *map(str, tmp_path.iterdir())]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "run\\nfinished" in shown and "run\n" not in shown


def test_a_run_that_goes_on_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path / "here")
    lock = run.hold()
    master = FakeMaster(run)
    try:
        assert main(["runs", str(tmp_path), "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["runs"]
        assert told["state"] == "running" and told["step"] == 0 and told["digest"] is None
    finally:
        master.die()
        os.close(lock)


def test_the_best_metric_is_what_a_run_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path / "run")
    run.create(make(None, {"program": "x.py"}))
    publish(run.report, report_of("finished", "done", best=ToldBest("auc", 0.9, 5)))
    main(["runs", str(tmp_path)])
    assert "auc 0.9000" in capsys.readouterr().out


def test_what_cannot_be_read_is_told_and_the_others_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path / "good")
    ended(tmp_path / "bad")
    RunDir(tmp_path / "bad").report.write_text("{")
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "good" in shown and "unreadable" in shown and "report.json: is damaged" in shown
    assert main(["runs", str(tmp_path / "absent")]) == 1
    assert "is no folder. Name one" in capsys.readouterr().err


def test_a_digest_is_computed_once_and_of_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    first = ended(tmp_path / "run")
    newest = checkpoint.load_manifest(run.storage(), 10)
    assert digests.digest_of(run, newest) == first
    second = saved(run, 1, step=20)
    assert digests.digest_of(run, checkpoint.load_manifest(run.storage(), 20)) == second != first
    monkeypatch.setattr(checkpoint, "digest", lambda *_: pytest.fail("read again"))
    assert digests.digest_of(run, newest) == first
    assert digests.digest_of(run, checkpoint.load_manifest(run.storage(), 20)) == second


def test_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = ended(tmp_path / "a", args={"lr": 0.1, "width": 8})
    ended(tmp_path / "b", args={"lr": 0.2, "width": 8}, workers="1..4")
    ended(tmp_path / "c", seed=3)
    names = [str(tmp_path / name) for name in "abc"]
    assert main(["compare", *names[:2]]) == 0
    shown = capsys.readouterr().out
    assert "digests: the same\n" in shown and "args.width" not in shown and "program " not in shown
    assert "  args.lr  0.1000  0.2000\n" in shown.replace("   ", "  ").replace("   ", "  ")
    assert "programs: not known of all" in shown
    assert main(["compare", *names]) == 0
    assert "digests: not the same (a = b)" in capsys.readouterr().out
    assert main(["compare", *names, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same_digest"] is False and told["runs"][0]["digest"] == digest
    assert told["settings"]["workers"] == ["2", "1..4", "2"] and told["settings"]["args.lr"] == [
        0.1,
        0.2,
        None,
    ]
    assert told["metrics"] == {"cost": [0.5] * 3, "accuracy": [0.75, 0.75, 0.78]}
    assert main(["compare", names[0]]) == 1
    assert "name two runs or more" in capsys.readouterr().err
    assert main(["compare", names[0], str(tmp_path / "d" / "e")]) == 1


def test_the_end_of_a_run_whose_checkpoint_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is the run's."""
    ended(tmp_path / "run", "stopped")
    for path in (tmp_path / "run").glob("checkpoints/*/manifest.json"):
        path.unlink()
        path.mkdir()
    run = RunDir(tmp_path / "run")
    report = run.read_report()
    assert report is not None
    show_end(run, report)
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told.startswith("digest: not to be had just now: ")
    assert last == "stopped: so it was"


def test_a_run_whose_checkpoints_another_has_is_not_said_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path / "run", "failed")
    run = RunDir(tmp_path / "run")
    report = run.read_report()
    assert report is not None
    report = msgspec.structs.replace(report, first_step_s=1.0, steps_total=40)
    show_end(run, report)
    assert "steps are missing; " in capsys.readouterr().err
    show_end(run, msgspec.structs.replace(report, text=f"s3://bucket/runs/a: /b/a (begun on h) {TAKEN_OVER}"))
    assert capsys.readouterr().err.splitlines()[-1].endswith(TAKEN_OVER)
