"""Epochs whose last batch is small, with a layer for which one record is too few."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, cli
from .processes import Outcome

PROGRAM = """
import os

import numpy as np
import torch

import elasticflow as ef

RECORDS = int(os.environ["RECORDS"])


def model():
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    return {"net": net, "optimizer": ef.SGD(lr=0.1)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    return {"spread": params["net"](x).std(0).mean()}  # of one record it is none


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 6)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    return {"train": {"x": x, "y": y}, "test": {"x": x[:65], "y": y[:65]}}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "norm.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("mode", [(), ("--mode", "async", "--staleness", 3)])
@pytest.mark.parametrize("records", [64 + 5, 64 + 15, 5])
def test_a_small_last_batch_is_trained_on(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, mode: tuple[object, ...]
) -> None:
    monkeypatch.setenv("RECORDS", str(records))
    done = cli("train", program, "--run-dir", tmp_path / "run", "--epochs", 3, *mode)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["records_covered"] == 3 * records and not report["quarantined"]
    assert all(evaluation["spread"] > 0 for evaluation in report["evaluations"])


def test_whoever_computes_it(
    start: Callable[..., Run], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only slice of a batch may be anybody's; also where its owner is killed."""
    monkeypatch.setenv("RECORDS", str(64 + 5))
    options = ("--epochs", 30, "--checkpoint-every", 1000)
    alone = start(str(program), *options, "--workers", 1).digest()
    run = start(str(program), *options, "--workers", 4, "--servers", 2)
    status = run.wait_until(lambda s: any(w.state == "ready" for w in s.workers))
    ready = next(w.name for w in status.workers if w.state == "ready")
    run.signal(ready, signal.SIGKILL)
    assert run.digest() == alone


def test_one_record_is_too_few(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """'check' says so, and so does the run, before its first step; without that record it goes on."""
    monkeypatch.setenv("RECORDS", "65")
    words = ("norm.py: on 1 record at once, as the last batch of an epoch (65 records by 64) has them",
             "Expected more than 1 value per channel", "drop_last: true")  # fmt: skip
    checked = cli("check", program)
    assert checked.returncode == 1 and all(word in checked.stderr for word in words), checked.stderr
    Outcome(tmp_path, "train", "norm.py", "--run-dir", "run").refused(*words)
    assert not list((tmp_path / "run").glob("checkpoints/*/*")), "it has not begun"
    checked = cli("check", program, "--drop-last")
    assert checked.returncode == 0 and "drop_last leaves out: 1 of 65 records" in checked.stdout
    done = cli("train", program, "--resume", "--run-dir", tmp_path / "run", "--epochs", 2, "--drop-last")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert (report["records_covered"], report["records_total"], report["records_left_out"]) == (128, 128, 1)
    assert "1 of each epoch left out (drop_last)" in cli("report", tmp_path / "run").stdout


def test_check_tries_all_sizes(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORDS", str(64 + 5))
    checked = cli("check", program)
    assert checked.returncode == 0, checked.stderr
    assert "one slice of 8 records: cost" in checked.stdout
    assert "5 records at once, in the last batch of an epoch (69 records by 64): cost" in checked.stdout
    assert "in the evaluation: cost" in checked.stdout


def test_nothing_is_left(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORDS", "63")
    Outcome(tmp_path, "train", "norm.py", "--run-dir", "run", "--drop-last").refused(
        "63 records, fewer than a batch", "drop_last", "nothing is left to train on"
    )
