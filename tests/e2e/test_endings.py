"""Ends that a program or a folder could bring about by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cli import main

from .conftest import PROGRAMS, cli

LEAVES = """
import sys

import numpy as np
import torch

import elasticflow as ef


def model():
    return {"w": torch.zeros(3), "optimizer": ef.SGD(lr=0.1)}


def forward(x, params):
    if (x > 90).any():
        sys.exit(0)
    return (params["w"].sum() * x).mean()


def data():
    return {"x": np.arange(100, dtype=np.float32)}
"""


def test_a_program_that_exits_does_not_end_the_run_well(tmp_path: Path) -> None:
    """Nor does it have workers started at all: no other would be spared."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    ended = cli("train", tmp_path / "leaves.py", "--run-dir", tmp_path / "run", "--batch-size", 8)
    assert ended.returncode == 1
    assert "SystemExit" in ended.stderr
    assert "no record is to blame for that, but the program" in ended.stderr
    assert "max_failures" not in ended.stderr


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though a file in it has the name of one of ours."""
    (tmp_path / "lock").write_text("theirs")
    (tmp_path / "thesis.txt").write_text("theirs")
    assert main(["train", str(PROGRAMS / "small_torch.py"), "--run-dir", str(tmp_path)]) == 1
    assert "not the folder of a run" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "lock": "theirs",
        "thesis.txt": "theirs",
    }
