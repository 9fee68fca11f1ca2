"""A program whose names and errors are commands for the terminal: no command ever shows one as it is."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from .conftest import CLI, PATIENCE_S

TITLE = "\x1b]0;taken over\x07"
PROGRAM = """
import numpy as np, torch, elasticflow as ef
TITLE = "\\x1b]0;taken over\\x07"

def model():
    return {"net" + TITLE: torch.nn.Linear(4, 1), "optimizer": ef.SGD(lr=0.1)}

def data():
    half = {"x": np.zeros((32, 4), np.float32), "y": np.zeros((32, 1), np.float32)}
    return {"train": half, "test": half}

def forward(x, y, params):
    print("seen" + TITLE, flush=True)
    cost = ((params["net" + TITLE](x) - y) ** 2).mean()
    if RAISES:
        raise ValueError("raised" + TITLE)
    return cost

def metrics(x, y, params):
    return {"acc" + TITLE: torch.tensor(1.0)}
"""


def on_a_terminal(*arguments: object) -> str:
    """What a command shows on one."""
    ours, theirs = pty.openpty()
    command = [*CLI, *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = bytearray()
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # nobody writes to it any more
            pass
        process.wait(PATIENCE_S)
    os.close(ours)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("raises", [False, True])
def test_names_and_errors(tmp_path: Path, raises: bool) -> None:
    program, run = tmp_path / f"evil{TITLE}.py", tmp_path / "run"
    program.write_text(f"RAISES = {raises}\n{PROGRAM}")
    shown = {"train": on_a_terminal("train", program, "--epochs", 1, "--batch-size", 8, "--run-dir", run)}
    for command in (["status"], ["status", "--json"], ["report"], ["logs"], ["logs", "--role", "worker"]):
        shown[" ".join(command)] = on_a_terminal(*command, run)
    for command in (["checkpoint", "show"], ["checkpoint", "list"]):
        shown[" ".join(command)] = on_a_terminal(*command, run)
    shown["status of nothing"] = on_a_terminal("status", tmp_path / f"nothing{TITLE}")
    escaped = r"\u001b]0;taken over\u0007"
    for command, text in shown.items():
        assert TITLE not in text and "\x1b]" not in text, (command, text)
    told = ["train"] if raises else ["logs", "checkpoint show"]
    for command in ("status of nothing", *told):
        assert escaped in shown[command], (command, shown[command])
