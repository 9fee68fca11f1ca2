"""Records that processes beside the workers make: the same model, whoever dies, and bad ones are named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--slices", 8, "--max-quarantined", 1)


def readers_of(pid: int) -> list[int]:
    """Its children that it has begun; who else is there, it has forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes() != _words(pid)]


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_same_model_whoever_makes_its_records(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD", "57")
    expected = start("made_records.py", *OPTIONS, "--workers", 1).digest()
    options = (*OPTIONS, "--workers", 2, "--read-processes", 1)
    run = start("made_records.py", *options, shut=["step 10", "step 40"])
    run.wait_for_workers(2)
    (reader,) = readers_of(run.pid("worker-2"))
    os.kill(reader, signal.SIGKILL)
    run.kill("worker-1")
    run.open("step 10")
    run.stop("step 40")
    said = "".join(log.read_text() for log in run.dir.logs.glob("worker-2*"))
    assert "warning: a process that reads ahead was killed by SIGKILL" in said
    again = cli("train", "--resume", "--run-dir", run.path, "--workers", 5, "--read-processes", 0)
    assert digest_in(again.stdout + again.stderr) == expected
    assert json.loads(run.dir.report.read_bytes())["quarantined"] == [57]
