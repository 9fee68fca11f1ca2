"""What is trained from a later epoch on: the same, whoever dies, and wherever the run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticflow import checkpoint
from elasticflow.run.folder import RunDir

from .conftest import Run, cli

OPTIONS = ("--epochs", 4, "--batch-size", 32, "--slices", 8, "--keep-checkpoints", 99)
MIDDLE, LATE = "step 12", "step 26"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The digest of one worker and one server, left alone, and the run's folder."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "thawed_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest(), path


def test_what_is_not_trained_stays_as_it_is(undisturbed: tuple[str, Path]) -> None:
    storage = RunDir(undisturbed[1]).storage()
    at = {
        step: dict(checkpoint.tensors(storage, checkpoint.load_manifest(storage, step), slots=True))
        for step in checkpoint.commits(storage)
    }
    assert {10, 20, 30, 40} <= at.keys()
    body = [name for name in at[10] if name.startswith("body.") and "#" not in name]
    moments = [name for name in at[10] if name.startswith("body.") and "#exp" in name]
    assert len(body) == 4 and len(moments) == 8
    for name in body:
        assert (at[10][name] == at[20][name]).all() and not (at[20][name] == at[30][name]).all()
    assert not any(at[20][name].any() for name in moments) and all(at[30][name].any() for name in moments)
    for name in ("body.2.weight", "body.2.bias"):
        assert (at[20][f"{name}#ema"] == at[20][name]).all() and not (at[30][f"{name}#ema"] == 0).any()
    assert not (at[10]["head.2.weight"] == at[20]["head.2.weight"]).all()
    rows = [name for name in at[10] if name.startswith("table")]
    assert rows and all(np.array_equal(at[10][name], at[20][name]) for name in rows)
    assert not all(np.array_equal(at[20][name], at[30][name]) for name in rows)


@pytest.mark.parametrize("workers, servers", [(2, 2), (5, 3)])
def test_whoever_dies_and_wherever_it_is_resumed(
    start: Callable[..., Run],
    undisturbed: tuple[str, Path],
    workers: int,
    servers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLICE_S", "0.005")
    options = (*OPTIONS, "--workers", workers, "--servers", servers)
    run = start("thawed_torch.py", *options, shut=[MIDDLE, LATE])
    run.wait_for_workers(workers)
    run.kill("worker-1")
    run.open(MIDDLE)
    run.wait_for_step(13)
    run.kill("server-0")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    assert run.stop(held_at=LATE).returncode == 0
    run.wait()
    again = run.path, "--resume", "--workers", 2
    with Run(run.path, "", command=["train", "--run-dir", *map(str, again)]) as resumed:
        assert resumed.digest() == undisturbed[0]


def test_other_epochs_are_refused_on_resume(
    undisturbed: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THAWS", "3")
    refused = cli("train", "--run-dir", undisturbed[1], "--resume", "--epochs", 5, "--workers", 1)
    assert refused.returncode == 1
    assert "'body.0.weight' is a float32 parameter of shape (64, 24) in group 1, trained from epoch 3 on" in (
        refused.stderr
    )
