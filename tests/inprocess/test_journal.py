"""What a master writes down is for those after it, and for nobody else's."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from elasticflow.checkpoint.place import take_over
from elasticflow.leading import _was_led
from elasticflow.master import reporting
from elasticflow.master.ground import Ground
from elasticflow.master.journal import Journal, read_journal
from elasticflow.master.state import MasterState
from elasticflow.master.status import Story
from elasticflow.process.retry import RemovedError
from elasticflow.process.texts import as_json
from elasticflow.run import config
from elasticflow.run.folder import RunDir, publish
from elasticflow.storage.background import Background
from elasticflow.wire.keys import MasterKeys, read_keys
from tests.telling import report_of

REPORT = report_of("stopped", "stopped by a test")


def keys_of(run: RunDir) -> MasterKeys:
    return read_keys(run.master_keys, MasterKeys)


def test_a_journal_that_another_run_left_here_is_not_followed(tmp_path: Path) -> None:
    """Its folder was this one, until it was removed: it may still write before it sees that."""
    chosen, run = config.make(None, {}), RunDir(tmp_path / "run")
    run.create(chosen)
    before = keys_of(run)
    memory, story = MasterState(chosen).memory(), Story(chosen, str(run.path), 0, None).remembered()
    journal = Journal(incarnation=1, port=0, memory=memory, story=story, keys=before.master_public)
    run.journal.write_bytes(as_json(journal))
    assert _was_led(run) and read_journal(run.journal, before)
    run.create(chosen)
    assert not _was_led(run) and read_journal(run.journal, keys_of(run)) is None
    run.journal.write_bytes(b"{")
    assert _was_led(run), "whoever leads says what is wrong with it"


def test_nothing_is_left_in_another_runs_folder(tmp_path: Path) -> None:
    """A report would be taken for the end of that one, and a checkpoint for one of its own."""
    run, background = RunDir(tmp_path / "run"), Background(patience_s=10)
    run.create(config.make(None, {}))
    ground = Ground(run, "", background)
    ground.leave(REPORT, 10)
    assert run.report.exists()
    run.report.unlink()
    run.create(config.make(None, {}))
    ground.leave(REPORT, 10)
    assert not run.report.exists() and not ground.folder_is_gone
    with pytest.raises(RemovedError, match="another run's by now"):
        ground.guard(lambda: pytest.fail("it would be committed there"))
    (tmp_path / "run").rename(tmp_path / "moved")
    deadline = time.monotonic() + 10
    while not ground.story and time.monotonic() < deadline:
        ground.look_now()
        ground.turn(time.monotonic())
        background.turn()
    ground.leave(REPORT, 10)
    assert RunDir(tmp_path / "moved").report.exists()
    background.close()
    ground.whereabouts.close()


def test_nothing_is_removed_where_another_has_taken_the_place_over(tmp_path: Path) -> None:
    """It writes a checkpoint there just now, whose files no manifest names yet."""
    run, background = RunDir(tmp_path / "run"), Background(patience_s=10)
    run.create(config.make(None, {"checkpoint_dir": str(tmp_path / "elsewhere")}))
    there = run.config().checkpoint_place
    ground = Ground(run, there, background)
    removed: list[str] = []
    ground.tidy(lambda: removed.append("its own"))
    take_over(there, str(tmp_path / "another"))
    ground.tidy(lambda: removed.append("another's"))
    assert removed == ["its own"]
    background.close()
    ground.whereabouts.close()


def test_a_report_does_not_wait_for_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which old checkpoints are removed just now: the run has ended all the same. What can be, is done."""
    run, background, is_left = RunDir(tmp_path / "run"), Background(patience_s=10), threading.Event()
    run.create(config.make(None, {"checkpoint_dir": str(tmp_path / "elsewhere")}))

    def left(path: Path, value: object) -> None:
        publish(path, value)
        is_left.set()

    monkeypatch.setattr(reporting, "publish", left)
    ground, pruned = Ground(run, run.config().checkpoint_place, background), list[bool]()
    background.submit(is_left.wait, lambda result, error: pruned.append(True), lambda text: None)
    ground.leave(REPORT, 10)
    assert run.report.exists() and pruned
    background.close()
    ground.whereabouts.close()


def test_a_report_is_not_tried_again_where_its_folder_was_just_removed(tmp_path: Path) -> None:
    """The master would wait for minutes, and with it whoever waits for the end."""
    run, background = RunDir(tmp_path / "run"), Background(patience_s=60)
    run.create(config.make(None, {}))
    ground = Ground(run, "", background)
    shutil.rmtree(run.path)
    begun_s = time.monotonic()
    ground.leave(REPORT, 60)
    assert time.monotonic() < begun_s + 30
    assert not run.path.exists()
    background.close()
    ground.whereabouts.close()
