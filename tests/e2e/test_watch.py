"""A defect that would give another model ends the run, and says who differs about what."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from elasticflow.run.folder import EXIT_CODES

from .conftest import Run

OPTIONS = ("--batch-size", 64, "--slices", 8, "--workers", 3)


@pytest.fixture
def config(tmp_path: Path) -> list[object]:
    """By TCP, and one thing after the other."""
    path = tmp_path / "frames.yaml"
    path.write_text("shared_memory: false\noverlap: false\n")
    return ["--config", path]


def drip(run: Run) -> None:
    """Lets the server take what comes only now and then, until the run is over."""
    status = run.wait_until(lambda status: status.step >= 1 or status.state == "broken")
    pid = next((member.pid for member in status.members if member.name == "server-0"), 0)
    with suppress(ProcessLookupError):
        while pid and run.process.poll() is None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.2)  # as long as a reader may be busy elsewhere; it is not given up for that
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)


@pytest.mark.parametrize(("early", "poison"), [("twice", "0"), ("once", "1")])
def test_memory_used_again_too_early_ends_the_run(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, config: list[object], early: str, poison: str
) -> None:
    monkeypatch.setenv("EARLY", early)
    monkeypatch.setenv("ELASTICFLOW_POISON", poison)
    run = start("early.py", *OPTIONS, *config, "--epochs", 1000)
    drip(run)
    code, output = run.wait()
    assert code == EXIT_CODES["broken"], output
    assert "server-0 has got other bits than those that were lent" in output
    assert "pushed in step" in output and "chunk" in output


def test_without_the_defect_a_reader_that_is_slow_changes_nothing(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, config: list[object]
) -> None:
    monkeypatch.setenv("ELASTICFLOW_POISON", "1")
    undisturbed = start("early.py", *OPTIONS, *config, "--epochs", 4).digest()
    run = start("early.py", *OPTIONS, *config, "--epochs", 4)
    drip(run)
    assert run.digest() == undisturbed
