"""Loops of a program's own in TensorFlow: the same model whoever computes and dies, and resumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Run

OPTIONS = ("--epochs", 1, "--batch-size", 40, "--slices", 4)
LATE = "step 9"


def test_whoever_computes_and_dies_and_resumed(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "own")
    undisturbed = start("looped_tensorflow.py", *OPTIONS, "--workers", 1).digest()
    monkeypatch.setenv("SLICE_S", "0.005")
    run = start("looped_tensorflow.py", *OPTIONS, "--workers", 2, "--servers", 2, shut=[LATE])
    run.wait_for_workers(2)
    run.kill("worker-1")
    run.open(LATE)
    assert run.digest() == undisturbed
    run = start(
        "looped_tensorflow.py", *OPTIONS, "--workers", 1, "--strategy", "all_reduce", shut=[LATE], name="run"
    )
    run.wait_for_step(8)
    run.stop(held_at=LATE)
    code, _ = run.wait()
    assert code == 3
    assert (
        start("looped_tensorflow.py", *OPTIONS, "--workers", 2, "--resume", name="run").digest()
        == undisturbed
    )


def test_pushed_gradients_are_the_same_by_any_number_of_workers(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "push")
    digests = {start("looped_tensorflow.py", *OPTIONS, "--workers", workers).digest() for workers in (1, 3)}
    assert len(digests) == 1
