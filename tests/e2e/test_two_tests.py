"""Several sources to test with: metrics of each by name, and what they decide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

import elasticflow as ef
from elasticflow import checkpoint
from elasticflow.program.loading import load
from elasticflow.run.folder import RunDir

from .conftest import PROGRAMS, Run

OPTIONS = ("--epochs", 30, "--batch-size", 32, "--slices", 4)


def test_each_has_its_own_metrics_whoever_computes_them(tmp_path: Path) -> None:
    runs = []
    for workers in (1, 2):
        with Run(tmp_path / str(workers), "two_tests.py", *OPTIONS, "--workers", workers) as run:
            run.finish()
            runs.append((run.digest(), ef.Run(run.path).metrics, run.report()))
    (digest, metrics, report), (other, others, _) = runs
    assert digest == other and metrics == others
    own = ["cost", "accuracy", "size", "auc"]
    assert list(metrics) == [
        "epoch",
        "step",
        "cost",
        *(f"{of}/{m}" for of in ("clean", "noisy") for m in own),
    ]

    assert report.state == "finished" and report.step < report.steps_total
    best = int(np.argmax(metrics["noisy/accuracy"]))
    assert report.best and report.best.step == metrics["step"][best] and len(metrics["step"]) == best + 4
    assert "noisy/accuracy was best" in report.text

    storage = RunDir(tmp_path / "1").storage()
    last = dict(checkpoint.tensors(storage, checkpoint.load_manifest(storage, report.step)))
    sources, costs = load(str(PROGRAMS / "two_tests.py")).data()["test"], {}
    for name, of in sources.items():
        scores = of["x"] @ last["net.weight"].T + last["net.bias"]
        costs[name] = F.cross_entropy(*map(_tensor, (scores, of["y"]))).item()
        found = {metric: metrics[f"{name}/{metric}"][-1] for metric in own}
        assert found["accuracy"] == np.mean(scores.argmax(1) == of["y"])
        assert found["auc"] == pytest.approx(roc_auc_score(of["y"] == 0, scores[:, 0]), abs=1e-9)
        assert found["size"] == pytest.approx(np.abs(scores).mean(), rel=1e-5)
        assert found["cost"] == pytest.approx(costs[name], rel=1e-5)
    whole = (37 * costs["clean"] + 90 * costs["noisy"]) / 127
    assert metrics["cost"][-1] == pytest.approx(whole, rel=1e-5)


def _tensor(array: np.ndarray) -> object:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))
