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
    full = SimpleNamespace(state="finishing", storage_trouble="server-0: No space left on device")
    good = SimpleNamespace(state="finishing", storage_trouble="")
    states = iter([None, full, full, good, SimpleNamespace(state="stopped")])
    connection = SimpleNamespace(insist=lambda request: None, next_status=lambda: next(states))
    monkeypatch.setattr(runs, "presence_of", lambda run: ended)
    monkeypatch.setattr(runs, "Connection", lambda run, waiting: nullcontext(connection))
    monkeypatch.setattr(runs, "wait_until_over", lambda run: None)
    told: list[str] = []
    with pytest.raises(RunError, match=r"did not stop well, and left no report: application_1_0001 ended as"):
        runs.stop_run(RunDir(tmp_path), told.append)
    assert told == ["it waits for its storage: server-0: No space left on device"], "what holds it up, once"
    monkeypatch.setattr(runs, "presence_of", lambda run: Presence(str(tmp_path)))
    states = iter([SimpleNamespace(state="stopped")])
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
