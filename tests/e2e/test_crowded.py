"""A slice for which there is too little memory: the run begins with smaller ones, and keeps to them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 2, "--batch-size", 64)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """For four records at once: 8 slices have eight."""
    monkeypatch.setenv("MOST_RECORDS", "4")


def test_the_same_digest_as_with_so_many_from_the_start(start: Callable[..., Run]) -> None:
    expected = start("small_torch.py", *OPTIONS, "--workers", 1, "--slices", 16).digest()
    run = start("small_torch.py", *OPTIONS, "--workers", 5, "--servers", 2, shut=["step 20"])
    run.wait_for_workers(5)
    run.held_at("step 20")
    run.kill("worker-1")
    run.stop("step 20")
    why = "a batch has 16 slices: there is too little memory for 8, of 8 records each"
    assert why in run.output()
    assert json.loads(run.dir.settings.read_bytes())["slices"] == 16
    again = cli("train", "--resume", "--run-dir", run.path, "--workers", 2)
    assert digest_in(again.stdout + again.stderr) == expected


def test_what_was_asked_for_is_not_changed(start: Callable[..., Run]) -> None:
    code, output = start("small_torch.py", *OPTIONS, "--workers", 1, "--slices", 8).wait()
    assert code == 1
    assert "there is too little memory for a slice of 8 records, of which a batch of 64 has 8" in output
    assert "Use more --slices, or a smaller --batch-size" in output
