"""A record on which the process itself ends, or hangs, is named and left out like one on which the program
raises; and what is wrong with a machine is never a record's fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, digest_in

OPTIONS = ("--epochs", 2, "--batch-size", 32, "--max-quarantined", 2)
DEATHS = {
    "exits": "ended by itself, with exit code 3",
    "exits well": "ended by itself, with exit code 0",
    "segmentation fault": "was killed by SIGSEGV",
    "null pointer": "was killed by SIGSEGV",
    "is killed": "was killed by SIGKILL",
}


def answer(path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a run in which these rows raise."""
    monkeypatch.setenv("BAD", bad)
    monkeypatch.setenv("HOW", "raises")
    with Run(path, "deadly.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


def quarantined(run: Run) -> list[int]:
    return sorted(json.loads(run.dir.report.read_bytes())["quarantined"])


@pytest.mark.parametrize("how", DEATHS)
def test_a_record_that_kills_is_left_out(
    how: str, start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer as if it had raised, after two workers and no more."""
    expected = answer(tmp_path / "raises", "57", monkeypatch)
    monkeypatch.setenv("HOW", how)
    run = start("deadly.py", *OPTIONS, "--workers", 1)
    output = run.finish()
    assert digest_in(output) == expected
    assert quarantined(run) == [57]
    assert f"row 57 is left out from now on: a process that computed it {DEATHS[how]}" in output
    assert "worker-3 has joined" in output and "worker-4" not in output, output
