"""Metrics made of sums: those of the whole test source, bit for bit the same whoever computes and dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import Run, cli
from .programs.measured_data import records

OPTIONS = ("--epochs", 2, "--batch-size", 64, "--slices", 8)
LATE = f"step {2 * 8 - 3}"


def evaluations(path: Path) -> list[dict[str, Any]]:
    report = cli("report", path, "--json")
    assert report.returncode == 0, report.stderr
    return json.loads(report.stdout)["evaluations"]


def check(path: Path, found: dict[str, Any]) -> None:
    """They are what plain NumPy makes of the model and all test records at once."""
    assert cli("export", path, path / "model.npz").returncode == 0
    test = records()["test"]
    scores, y = test["x"] @ np.load(path / "model.npz")["w"], test["y"] > 0
    pairs = scores[~y][:, None] - scores[y][None]
    assert found["auc"] == pytest.approx(((pairs < 0) + (pairs == 0) / 2).mean(), abs=1e-5)
    assert found["curve"] == pytest.approx(found["auc"], abs=2e-3)
    assert found["recall"] == pytest.approx((scores[y] >= 0.5).mean(), abs=0.02)
    assert found["same"] == pytest.approx(found["plain"], rel=1e-5)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "measured_torch.py", *OPTIONS, "--workers", 1) as run:
        run.finish()
        found = evaluations(path)
        check(path, found[-1])
        return found


@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (5, 1)])
def test_whoever_computes_and_dies(
    start: Callable[..., Run],
    undisturbed: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    servers: int,
) -> None:
    monkeypatch.setenv("SLICE_S", "0.005")
    run = start("measured_torch.py", *OPTIONS, "--workers", workers, "--servers", servers, shut=[LATE])
    run.wait_for_workers(workers)
    run.kill("worker-1")
    run.open(LATE)
    run.finish()
    assert evaluations(run.path) == undisturbed


def test_in_tensorflow(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_TENSORFLOW", "1")
    run = start("measured_torch.py", *OPTIONS, "--workers", 1)
    run.finish()
    check(run.path, evaluations(run.path)[-1])
