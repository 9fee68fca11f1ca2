"""A run's master that ends before it has said anything."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from elasticflow.cli.train import start_master
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("kill -9 $$", "it was killed by SIGKILL; its last words: (none)"),
        ("echo no libgomp >&2; exit 5", "it ended with exit code 5; its last words: no libgomp"),
    ],
)
def test_how_it_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "run" / "logs").mkdir(parents=True)
    with pytest.raises(RunError, match=f"^the master did not start: {re.escape(words)}$"):
        start_master(RunDir(tmp_path / "run"), resume=False)
