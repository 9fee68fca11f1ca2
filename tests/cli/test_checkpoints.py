"""Checkpoints that are damaged, and disks that are full, as the commands see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

import pytest

from elasticflow import checkpoint
from elasticflow.cli.main import main
from elasticflow.run.config import make
from elasticflow.run.folder import RunDir
from elasticflow.storage import DirectoryStorage
from tests.full_disk import room_of

from .test_history import saved


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create(make(None, {"program": "x.py"}))
    for step in (10, 20, 30):
        saved(run, 0, step)
    return run


def test_one_that_is_damaged_hides_no_others(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (manifest,) = run.folder.glob("checkpoints/*20/manifest.json")
    manifest.write_bytes(b"")
    assert main(["checkpoint", "list", str(run.path)]) == 1
    told = capsys.readouterr()
    assert [line.split()[1] for line in told.out.splitlines()] == ["10", "30"]
    assert "not listed, as damaged" in told.err and "0000000020/manifest.json" in told.err
    assert main(["checkpoint", "list", "--json", str(run.path)]) == 1
    assert [each["step"] for each in json.loads(capsys.readouterr().out)] == [10, 30]


@pytest.mark.parametrize("ending", [".pt", ".npz", ".h5", ".safetensors"])
@pytest.mark.parametrize("room", [0, 1000])
def test_export_to_a_full_disk(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, room: int
) -> None:
    with room_of(room):
        assert main(["export", str(run.path), str(tmp_path / f"model{ending}")]) == 1
    told = capsys.readouterr().err.strip()
    assert "\n" not in told and f"model{ending}: " in told and "File too large" in told
    assert {each.name for each in tmp_path.iterdir()} == {"run"}


def test_what_a_copy_that_was_killed_leaves_is_said_to_be_that(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = RunDir(tmp_path / "half")
    half.create(make(None, {"program": "x.py"}))
    assert main(["checkpoint", "copy", str(run.path), str(half.path)]) == 1
    assert "is there already, and holds a run without a checkpoint" in capsys.readouterr().err
    saved(half, 0, 10)
    assert main(["checkpoint", "copy", str(run.path), str(half.path)]) == 1
    assert "is there already; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize("all_gone", [False, True])
@pytest.mark.parametrize(("action", "told"), [("list", "step {}  epoch"), ("verify", "step {}: whole")])
def test_what_a_run_that_goes_on_removes_meanwhile_is_not_damaged(
    run: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    action: str,
    told: str,
    all_gone: bool,
) -> None:
    open_, removed = DirectoryStorage.open, []

    def late(storage: DirectoryStorage, path: str) -> BinaryIO:
        if "0000000010" in path and not removed:
            removed.append(path)
            if all_gone:
                saved(run, 0, 40)
            checkpoint.prune(storage, keep=1)
        return open_(storage, path)

    monkeypatch.setattr(DirectoryStorage, "open", late)
    assert main(["checkpoint", action, str(run.path)]) == 0 and removed
    assert capsys.readouterr().out.startswith(told.format(40 if all_gone else 30))
