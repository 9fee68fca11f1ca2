"""A worker's kill -9 at exact moments: the program itself, loaded by the worker, kills it there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--slices", 8, "--workers", 2, "--servers", 2)
MOMENTS = ("in forward", "between push and reply", "between the servers", "while joining", "when ready")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Run(tmp_path_factory.mktemp("undisturbed") / "run", "dying.py", *OPTIONS) as run:
        return run.digest()


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    flag = tmp_path / "died"
    monkeypatch.setenv("DIE_AT", moment)
    monkeypatch.setenv("DIE_ONCE", str(flag))
    run = start("dying.py", *OPTIONS)
    output = run.finish()
    assert flag.exists(), f"nobody reached the moment {moment!r}"
    assert "was killed by SIGKILL" in output
    assert f"digest: {undisturbed}" in output
