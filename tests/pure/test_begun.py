"""A leader that is lost while it makes a run's folder: whoever comes next knows what there is."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from elasticflow.leading import begin
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir

PROGRAM = "def model(): ...\ndef forward(x, params): ...\n"


class Lost(BaseException):
    pass


@pytest.mark.parametrize("acts", range(5))
def test_it_is_lost_after_so_many_renames(acts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written appears by a rename: before there is a run, its folder says whose it is."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run = RunDir(tmp_path / "run")
    config = Config(program=str(tmp_path / "program.py"), backend="kubernetes")
    done = 0

    def counted(act: Any) -> Any:
        def rename(*args: Any, **more: Any) -> Any:
            nonlocal done
            if done == acts:
                raise Lost
            done += 1
            return act(*args, **more)

        return rename

    with monkeypatch.context() as patched, contextlib.suppress(Lost):
        for name in ("rename", "replace", "link"):
            patched.setattr(os, name, counted(getattr(os, name)))
        begin(run, config, "job-1", id="this run")
    if run.settings.exists():
        host = run.host()
        assert host is not None and host.run == "this run"
        assert run.client_keys.exists() and run.master_keys.exists()
    else:
        assert acts < 3 and (run.host() is not None) == (acts == 2)
        begin(run, config, "job-1", id="this run")
    assert run.config().program == config.program
    assert done == min(acts, 3), "the program, whose the folder is, the settings"
