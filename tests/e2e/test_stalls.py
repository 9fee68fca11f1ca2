"""Somebody hangs while the heart beats: told with the line where, replaced, and the run goes on or ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PROGRAMS, Run, cli, digest_in
from .processes import wait_until_gone

OPTIONS = ("--epochs", 3, "--batch-size", 32, "--checkpoint-every", "1h")
SOURCE = (PROGRAMS / "hanging.py").read_text().splitlines()


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text("stall_s: 4\nheartbeat_s: 0.2\nsuspect_s: 2\nlost_s: 20\n")
    return path


@pytest.fixture
def hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says that now it is time to."""
    monkeypatch.setenv("HANG", str(tmp_path / "hang"))
    return tmp_path / "hang"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a run in which nobody hangs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANG", "/nonexistent")
        with Run(tmp_path_factory.mktemp("undisturbed") / "run", "hanging.py", *OPTIONS) as run:
            return run.digest()


def logs_of(run: Run) -> str:
    return "".join(path.read_text() for path in sorted((run.path / "logs").glob("*.log")))


@pytest.mark.parametrize("how", ["lock", "C"])
def test_the_only_worker_hangs(
    start: Callable[..., Run],
    settings: Path,
    hang: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """It is replaced; that is no failure of its own, and the model is the same."""
    monkeypatch.setenv("HOW", how)
    monkeypatch.setenv("ONCE", "1")
    run = start("hanging.py", *OPTIONS, "--config", settings, "--workers", 1, "--servers", 2, shut=["step 8"])
    run.wait_for_step(7)
    hang.touch()
    run.open("step 8")
    assert run.digest() == undisturbed
    told = run.output()
    assert re.search(r"no step was made for \d+ s: worker-1 computes slice \d of tick \d+", told), told
    assert "hangs at hanging.py, line" in told and "in hang" in told, told
    assert "worker-1 hangs, and is replaced" in told
    log = (run.path / "logs" / "worker-1.log").read_text()
    assert "what each thread does now" in log and 'hanging.py", line' in log, log


@pytest.mark.parametrize("where", ["forward", "metrics"])
def test_all_hang_at_the_same_slice(
    start: Callable[..., Run],
    settings: Path,
    hang: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """Replacing them does not help: the run ends, with all that was done, and goes on once that is mended."""
    monkeypatch.setenv("WHERE", where)
    run = start("hanging.py", *OPTIONS, "--config", settings, "--workers", 2, shut=["step 5"])
    run.wait_for_step(4)
    hang.touch()
    run.open("step 5")
    code, output = run.wait()
    assert code == 5, output
    assert "hangs at hanging.py, line" in output and "are missing" in output, output
    assert f"in hang: {SOURCE[-1].strip()}" not in output
    report = run.report()
    assert report.state == "stalled" and "hanging.py" in report.traceback
    if where == "forward":
        assert report.checkpoint_step == report.step >= 4, "nothing that was done is lost"
    hang.unlink()
    resumed = start("hanging.py", "--resume", "--workers", 1, name="run-0").finish()
    assert digest_in(resumed) == undisturbed


def test_one_of_several_hangs(
    start: Callable[..., Run],
    settings: Path,
    hang: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others do its slices at once: that is no stall."""
    monkeypatch.setenv("ONCE", "1")
    run = start("hanging.py", *OPTIONS, "--config", settings, "--workers", 3, shut=["step 8"])
    run.wait_for_step(7)
    hang.touch()
    run.open("step 8")
    assert run.digest() == undisturbed
    assert "no step was made" not in run.output()


def test_one_that_holds_pythons_lock(
    start: Callable[..., Run],
    settings: Path,
    hang: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its heart stops: it is silent, and ended after ``lost_s``; its stacks are in its log all the same."""
    monkeypatch.setenv("HOW", "python's lock")
    monkeypatch.setenv("ONCE", "1")
    run = start("hanging.py", *OPTIONS, "--config", settings, "--workers", 1, shut=["step 8"])
    run.wait_for_step(7)
    hang.touch()
    run.open("step 8")
    assert run.digest() == undisturbed
    log = (run.path / "logs" / "worker-1.log").read_text()
    assert "Timeout" in log and 'hanging.py", line' in log, log


def test_loading_hangs(
    start: Callable[..., Run], settings: Path, hang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step there is nothing to keep, and the run says where it hung."""
    monkeypatch.setenv("WHERE", "model")
    hang.touch()
    run = start("hanging.py", *OPTIONS, "--config", settings, "--workers", 1)
    code, output = run.wait()
    assert code == 5, output
    assert (
        "nothing has moved" in output and "loads the program and its data, and hangs at hanging.py" in output
    )


def test_stop_ends_though_no_step_does(
    start: Callable[..., Run], tmp_path: Path, hang: Path, undisturbed: str
) -> None:
    """With what was done until then, and long before the run would be taken for stalled."""
    run = start("hanging.py", *OPTIONS, "--workers", 2, shut=["step 5"])
    run.wait_for_step(4)
    stopped = cli("stop", run.path)  # whoever computes the step is held
    assert stopped.returncode == 0, stopped.stderr
    code, output = run.wait()
    assert code == 3 and "stopped by 'elasticflow stop': 16 of 21 steps are missing" in output, output
    run.open("step 5")
    assert digest_in(start("hanging.py", "--resume", name="run-0").finish()) == undisturbed


def test_a_server_hangs_whose_heart_beats(
    start: Callable[..., Run],
    settings: Path,
    hang: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its main thread alone: another takes its place, from what its keeper has."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(HANGING_SERVER)
    monkeypatch.setenv("PYTHONPATH", str(library))
    run = start("hanging.py", *OPTIONS, "--config", settings, "--servers", 2, shut=["step 8"])
    run.wait_for_step(7)
    run.signal("server-1", signal.SIGUSR2)
    run.open("step 8")
    assert run.digest() == undisturbed
    assert "server-1 hangs, and is replaced" in run.output(), run.output()
    assert "SIGUSR2" not in logs_of(run)


def test_a_thread_of_a_member_that_dies(
    start: Callable[..., Run],
    settings: Path,
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its process ends, and is replaced: nobody lives on without a line to the master."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(BROKEN_LINK)
    monkeypatch.setenv("PYTHONPATH", str(library))
    monkeypatch.setenv("HANG", str(tmp_path / "hang"))
    run = start("hanging.py", *OPTIONS, "--config", settings, "--servers", 2, shut=["step 8"])
    run.wait_for_step(7)
    for name in ("worker-1", "server-1"):
        run.signal(name, signal.SIGUSR2)
    run.wait_for_output("server-1 ended with exit code 70")
    run.wait_for_output("worker-1 ended with exit code 70")
    run.open("step 8")
    assert run.digest() == undisturbed
    assert "RuntimeError: a defect" in run.output(), run.output()
    assert "the thread 'master-link' of process" in (run.path / "logs" / "worker-1.log").read_text()


BROKEN_LINK = """
import signal

def fail(*arguments):
    raise RuntimeError("a defect")

def spoil(*_):
    import elasticflow.cluster.member
    elasticflow.cluster.member.MasterLink._receive = fail

signal.signal(signal.SIGUSR2, spoil)
"""
HANGING_SERVER = """
import signal, threading
signal.signal(signal.SIGUSR2, lambda *_: threading.Event().wait())
"""


def test_ctrl_c_twice_ends_a_run_whose_master_hangs(start: Callable[..., Run], hang: Path) -> None:
    run = start("hanging.py", *OPTIONS, "--workers", 1, shut=["step 5"])
    run.wait_for_step(4)
    run.signal("master", signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    run.wait_for_output("Ctrl-C: this step")
    run.process.send_signal(signal.SIGINT)
    code, output = run.wait()
    assert code == 1 and "ended at once" in output, output
    assert not wait_until_gone(run.environment)
