"""``log_format: json``: whatever a run's processes and its command write, a collector reads line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .conftest import Run, cli

OPTIONS = ("--epochs", 2, "--workers", 2, "--log-format", "json")
PROGRAM = """
import os
import sys
import torch
import elasticflow as ef

def model():
    print("layers:", end=" ")
    if not os.fork():
        print("of a child")
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print('"two"')
    sys.stderr.write("no end")
    return {"net": torch.nn.Linear(2, 2), "optimizer": ef.SGD(lr=0.1)}

def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)

def data():
    return {"x": torch.ones(64, 2).numpy(), "y": torch.ones(64, dtype=torch.int64).numpy()[WRONG:]}
"""


def test_every_line_of_a_run(start: Callable[..., Run], tmp_path: Path) -> None:
    """Also of one whose worker is killed; and they are shown to people as ever."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("WRONG", ""))
    run = start(str(tmp_path / "program.py"), *OPTIONS, "--max-steps", 400, "--epochs", 1000)
    run.wait_for_workers(2)
    run.kill("worker-1")
    found = [json.loads(line) for line in run.finish().splitlines()]
    assert {each["process"] for each in found} == {"train"}
    assert any(each["message"].startswith("digest: ") for each in found)
    assert any("worker-1 " in each["message"] and "killed" in each["message"] for each in found)
    for path in run.path.glob("logs/*.log"):
        lines = path.read_text().splitlines()
        told = [json.loads(line) for line in lines]
        assert {each["process"] for each in told} <= {path.stem} | {"nursery"} | {"master"}
        if path.stem == "worker-2":
            messages = [each["message"] for each in told]
            assert 'layers: "two"' in messages and "of a child" in messages
    shown = cli("logs", run.path, "--json")
    for line in shown.stdout.splitlines():
        assert json.loads(line).keys() >= {"time", "level", "process", "message"}


def test_what_went_wrong_is_told_alike(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("WRONG", "1"))
    texts = []
    for form in "text", "json":
        run = tmp_path / form
        failed = cli("train", tmp_path / "program.py", "--run-dir", run, "--log-format", form)
        assert failed.returncode == 1
        texts.append(json.loads((run / "report.json").read_text())["text"])
        last = failed.stderr.splitlines()[-1]
        if form == "json":
            assert json.loads(last)["level"] == "error"
            last = json.loads(last)["message"]
        assert last.startswith("Error: ") and "different lengths" in last
    assert texts[0] == texts[1]
