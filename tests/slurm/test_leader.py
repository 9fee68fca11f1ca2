"""What a leader does about a storage that is away, or full, when it begins."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from elasticflow import leading
from elasticflow.cli.train import OPTIONS, SWITCHES
from elasticflow.errors import ConfigError, DataError, RunError
from elasticflow.leading import Failing, check_begun, patiently
from elasticflow.program.copy import keep, take
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_slurm import leader


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds for which it slept; the clock knows no others."""
    seconds: list[float] = []
    monkeypatch.setattr(leading.time, "sleep", seconds.append)
    monkeypatch.setattr(leading.time, "monotonic", lambda: sum(seconds))
    return seconds


def test_a_folder_that_comes_back(
    tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            run.create(Config(program="p.py"))

    monkeypatch.setattr(leading.time, "sleep", sleep)
    assert patiently(run.config).program == "p.py" and len(slept) == 3


def test_a_folder_that_stays_away_is_never_made_anew(tmp_path: Path, slept: list[float]) -> None:
    run = RunDir(tmp_path / "run")
    with pytest.raises(RunError, match="is not the folder of a run"):
        patiently(lambda: check_begun(run))
    assert sum(slept) == Config().storage_patience_s and not run.path.exists()


def test_a_full_disk(slept: list[float]) -> None:
    def act() -> int:
        if len(slept) < 5:
            raise OSError(28, "No space left on device")
        return 7

    assert patiently(act) == 7


def test_what_no_patience_cures_is_told_at_once(slept: list[float]) -> None:
    def act() -> int:
        raise ConfigError("slurm.gpus: 'two'")

    with pytest.raises(ConfigError):
        patiently(act)
    assert not slept


def test_masters_that_fail_one_after_the_other_know_of_each_other() -> None:
    failing = Failing(30.0)

    def fails(now_s: float) -> bool:
        """In a process of its own, as a master."""
        pid = os.fork()
        if not pid:
            os._exit(0 if failing.may_last(now_s) else 1)
        return os.waitpid(pid, 0)[1] == 0

    assert [fails(now_s) for now_s in (100.0, 129.0, 130.0)] == [True, True, False]
    failing.end()
    assert fails(200.0) and fails(229.0)


def test_another_program_than_the_runs_is_not_taken_by_mistake(tmp_path: Path) -> None:
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text(
            "def model():\n    return {}\n\n\ndef forward(x, params):\n    return 0\n"
        )
    run = RunDir(tmp_path / "run")
    settings = Config(program=str(tmp_path / "one.py"), run_dir=str(run.path), backend="slurm")
    chosen, copy = take(settings)
    assert copy
    run.create(chosen)
    keep(run, copy)
    given = {"program": str(tmp_path / "other.py"), "run_dir": str(run.path), "resume": True}
    none = dict.fromkeys((*OPTIONS, *SWITCHES, "config", "new_program"))
    with pytest.raises(ConfigError, match=r"other\.py: the run in .* is of one\.py"):
        leader._folder(argparse.Namespace(**{**none, **given}), 7)


def test_missing_data_end_a_run_before_it_asks_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the machine that submits cannot see them. A leader that goes on does not look again."""
    run = RunDir(tmp_path / "run")
    settings = {"program": "p.py", "data": str(tmp_path / "none.npz"), "backend": "slurm"}
    run.create(Config(**settings, run_dir=str(run.path)))  # type: ignore[arg-type]
    publish(run.job, HostJob("slurm", "7", "0123456789ab"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(leader, "host", lambda *args, **kwargs: 0)
    monkeypatch.setattr(leader, "end_with_parent", lambda number: None)
    none = dict.fromkeys((*OPTIONS, *SWITCHES, "config", "new_program", "program", "resume"))
    arguments = argparse.Namespace(**{**none, "run_dir": str(run.path)})
    with pytest.raises(DataError, match="none.npz"):
        leader.lead(arguments)
    run.journal.write_text("{}")
    assert leader.lead(arguments) == 0
