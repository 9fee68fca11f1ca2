"""What who stops a run, or is shown it, is told that ends otherwise."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticflow.cli import attach, runs
from elasticflow.cluster.presence import Presence, RunEnd
from elasticflow.errors import RunError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir


def test_of_a_run_that_somebody_kills_as_it_is_stopped_it_is_told_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = SimpleNamespace(
        cancel=lambda: "",
        is_anothers=lambda: False,
        end=lambda: RunEnd("application_1_0001", "KILLED", "ended as KILLED: killed by user ann"),
        last_words=lambda: "",
    )
    connection = SimpleNamespace(insist=lambda request: None)
    monkeypatch.setattr(runs, "presence_of", lambda run: ended)
    monkeypatch.setattr(runs, "Connection", lambda run, waiting: nullcontext(connection))
    monkeypatch.setattr(runs, "_wait_for_end", lambda connection: None)
    monkeypatch.setattr(runs, "wait_until_over", lambda run: None)
    with pytest.raises(RunError, match=r"did not stop well, and left no report: application_1_0001 ended as"):
        runs.stop_run(RunDir(tmp_path))
    monkeypatch.setattr(runs, "presence_of", lambda run: Presence(str(tmp_path)))
    with pytest.raises(RunError, match="left no report: its processes were killed; go on with --resume"):
        runs.stop_run(RunDir(tmp_path))


def test_of_a_run_whose_folder_goes_while_it_is_shown_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the folder of a run, as who is shown it knows."""
    run = RunDir(tmp_path / "run")
    run.create(Config())

    def moved(*_: object) -> None:
        run.path.rename(tmp_path / "trash")  # type: ignore[arg-type]

    monkeypatch.setattr(attach, "follow", moved)
    with pytest.raises(RunError, match=r"/run: its folder was removed while it ran, or moved, .* --resume"):
        attach.attach_to(run)
