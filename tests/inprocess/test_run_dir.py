"""The lock of a run's folder: shared with those forked, with nobody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from elasticflow.cluster.presence import read_address
from elasticflow.errors import RunError
from elasticflow.run import config
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.run.whereabouts import Whereabouts
from tests.telling import report_of


def test_the_lock_is_held_as_long_as_one_of_those_forked_lives(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert not run.is_locked()
    lock = run.hold()
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)  # not even then
    (go, end), pid = os.pipe(), os.fork()
    if pid == 0:
        os.close(end)
        os.read(go, 1)
        os._exit(0)
    os.close(go)
    os.close(lock)
    assert run.is_locked()
    with pytest.raises(RunError, match="another run is using this folder"):
        run.hold()
    os.close(end)
    os.waitpid(pid, 0)
    assert not run.is_locked()
    other.communicate()


def test_a_pipe_in_the_place_of_the_lock_is_nobodys(tmp_path: Path) -> None:
    """Who opened it as a file would wait for ever, and so would `runs` of a folder with such a run."""
    os.mkfifo(tmp_path / "lock")
    assert not RunDir(tmp_path).is_locked()


def test_who_may_only_read_a_run_is_told_whether_it_goes_on() -> None:
    """Such as one that is kept, and that nobody is to change any more: status and report read it alone."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # pytest's own folders are not for other users
        run = RunDir(name)
        lock = run.hold()
        run.lock.chmod(0o444)
        assert _seen_by_a_reader(run) == 1
        os.close(lock)
        assert _seen_by_a_reader(run) == 0


def _seen_by_a_reader(run: RunDir) -> int:
    """1: it is locked. Root may write anywhere, so that it looks as somebody else."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        if os.geteuid() == 0:
            os.setuid(65534)
        os._exit(run.is_locked())
    finally:
        os._exit(2)


@pytest.mark.parametrize("way", ["moved", "removed"])
def test_a_folder_tells_that_one_above_it_was_moved_or_removed(tmp_path: Path, way: str) -> None:
    """What its path tells is no more than when a file system is away, which is waited for."""
    run = RunDir(tmp_path / "runs" / "first")
    run.create(config.make(None, {}))
    folder = Whereabouts(run)
    assert not folder.has_left()
    if way == "moved":
        (tmp_path / "runs").rename(tmp_path / "before")
    else:
        shutil.rmtree(tmp_path / "runs")
    assert folder.has_left() and f"was {way}" in folder.story()
    folder.close()
    assert not folder.has_left()


def test_a_folder_that_was_emptied_is_removed(tmp_path: Path) -> None:
    """Who removes it cannot where a file was written meanwhile, and nobody would end its run."""
    run = RunDir(tmp_path / "run")
    run.create(config.make(None, {}))
    folder = Whereabouts(run)
    shutil.rmtree(run.path / "keys")
    assert not folder.has_left()
    run.settings.unlink()
    assert folder.has_left() and folder.moved_to() is None and "was removed" in folder.story()
    begins = Whereabouts(run)
    assert begins.has_left(), "who had read them before need not see them again"
    folder.close()
    begins.close()


def test_a_folder_is_anothers_by_its_keys(tmp_path: Path) -> None:
    """Those are new with each run that begins there, and where one is resumed."""
    first = RunDir(tmp_path / "run")
    first.create(config.make(None, {}))
    folder = Whereabouts(first)
    assert not folder.is_anothers() and not folder.has_left()
    first.client_keys.unlink()
    assert not folder.is_anothers(), "that tells nothing"
    first.create(config.make(None, {}))
    assert folder.has_left() and folder.moved_to() is None
    assert "is another run's by now" in folder.story()
    (tmp_path / "run").rename(tmp_path / "other")
    RunDir(tmp_path / "run").create(config.make(None, {}))
    moved = folder.moved_to()
    assert moved is not None and moved.path == tmp_path / "other" and "was moved to" in folder.story()
    folder.close()


def test_the_address_is_good_while_another_master_takes_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(RunError, match="over, and left no report"):
        read_address(run)
    lock = run.hold()
    with pytest.raises(RunError, match="starts or ends just now"):
        read_address(run)
    publish(run.address, Address("tcp://127.0.0.1:1", "here", 1))
    assert read_address(run).pid == 1
    os.close(lock)
    with pytest.raises(RunError, match="this run is over, and left no report"):
        read_address(run)
    publish(run.report, report_of("finished", "the end of epoch 1"))
    with pytest.raises(RunError, match="this run is over: finished, the end of epoch 1"):
        read_address(run)


def test_a_leftover_that_cannot_be_removed_keeps_no_other_and_no_master(tmp_path: Path) -> None:
    for name in ("attempts", "journal", "report"):
        (tmp_path / f".{name}.json.0123abcd").touch()
    (tmp_path / ".journal.json.0123abcd").unlink()
    (tmp_path / ".journal.json.0123abcd").mkdir()
    RunDir(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == [".journal.json.0123abcd"]
