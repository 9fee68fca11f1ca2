"""A leader that is lost while it makes a run's folder: whoever comes next knows what there is."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow import leading
from elasticflow.cli.train import OPTIONS, SWITCHES
from elasticflow.errors import RunError, UnknownError
from elasticflow.leading import begin
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow_slurm import index
from elasticflow_slurm import leader as slurm
from elasticflow_yarn import leader as yarn

PROGRAM = "def model(): ...\ndef forward(x, params): ...\n"


class Lost(BaseException):
    pass


class Renames:
    """What is written appears by a rename. done: so many have been made."""

    def __init__(self) -> None:
        self.done = 0

    @contextlib.contextmanager
    def lost_after(self, acts: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Whoever makes more of them is lost."""

        def counted(act: Callable[..., Any]) -> Callable[..., Any]:
            def rename(*args: Any, **more: Any) -> Any:
                if self.done == acts:
                    raise Lost
                self.done += 1
                return act(*args, **more)

            return rename

        with monkeypatch.context() as patched, contextlib.suppress(Lost):
            for name in ("rename", "replace", "link"):
                patched.setattr(os, name, counted(getattr(os, name)))
            yield


@pytest.mark.parametrize("acts", range(5))
def test_it_is_lost_after_so_many_renames(acts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a run, its folder says whose it is."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run = RunDir(tmp_path / "run")
    config = Config(program=str(tmp_path / "program.py"), backend="kubernetes")
    renames = Renames()
    with renames.lost_after(acts, monkeypatch):
        begin(run, config, "job-1", id="this run")
    if run.settings.exists():
        host = run.host()
        assert host is not None and host.run == "this run"
        assert run.client_keys.exists() and run.master_keys.exists()
    else:
        assert acts < 3 and (run.host() is not None) == (acts == 2)
        begin(run, config, "job-1", id="this run")
    assert run.config().program == config.program
    assert renames.done == min(acts, 3), "the program, whose the folder is, the settings"


Lead = Callable[[RunDir, bool], RunDir]


@pytest.fixture(params=["slurm", "yarn"])
def lead(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lead:
    """Finds, or makes, the folder of a run whose program is named, for the first time or after a requeue."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(index._INDEX, "_told", lambda: iter(()))
    slept: list[float] = []
    monkeypatch.setattr(leading.time, "sleep", slept.append)
    monkeypatch.setattr(leading.time, "monotonic", lambda: sum(slept))

    def folder(run: RunDir, again: bool) -> RunDir:
        none = dict.fromkeys((*OPTIONS, *SWITCHES, "config", "new_program"))
        given = {"program": str(tmp_path / "program.py"), "run_dir": str(run.path), "resume": False}
        arguments = argparse.Namespace(**{**none, **given})
        if request.param == "yarn":
            return yarn._folder(arguments, "application_1_1")
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(int(again)))
        return slurm._folder(arguments, 7)

    return folder


@pytest.mark.parametrize("acts", range(5))
def test_who_follows_makes_the_folder_whole(
    acts: int, lead: Lead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    with Renames().lost_after(acts, monkeypatch):
        lead(run, False)
    begun, settings = run.settings.exists(), run.settings
    before = settings.read_bytes() if begun else b""
    assert begun == (acts >= 3)
    lead(run, True)
    host = run.host()
    assert run.config().program.endswith("program.py") and host is not None
    assert run.client_keys.exists() and run.master_keys.exists()
    assert not begun or settings.read_bytes() == before, "what was whole is left as it is"


@pytest.mark.parametrize("lead", ["slurm"], indirect=True)
def test_what_slurm_knows_to_be_begun_is_never_made_anew(tmp_path: Path, lead: Lead) -> None:
    run = RunDir(tmp_path / "run")
    index.add(7, "run", run.folder)
    with pytest.raises(RunError, match="is not the folder of a run"):
        lead(run, True)
    assert not run.path.exists()


@pytest.mark.parametrize("lead", ["slurm"], indirect=True)
def test_who_cannot_ask_slurm_takes_it_to_be_begun(
    tmp_path: Path, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> Iterator[Any]:
        raise UnknownError("SLURM does not answer")

    monkeypatch.setattr(index._INDEX, "_told", silent)
    with pytest.raises(RunError, match="is not the folder of a run"):
        lead(RunDir(tmp_path / "run"), True)
