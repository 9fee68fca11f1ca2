"""Runs begun, watched and used from Python, with functions of a session and with a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE_S
from .processes import end_all, new_mark

SESSION = """
import json, sys
import numpy as np, torch
import elasticflow as ef
from torch.nn.functional import cross_entropy as ce

WIDTH = 8
SIZES = [3, WIDTH]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(*SIZES), torch.nn.Linear(WIDTH, 2))

    def forward(self, x):
        return squash(self.layers(x))


def squash(x):
    return torch.tanh(x)


def make():
    return {"net": Net(), "optimizer": ef.SGD(lr=0.1)}


def forward(x, y, params):
    return ce(params["net"](x), y)


def accuracy(x, y, params):
    return {"accuracy": (params["net"](x).argmax(1) == y).float().mean()}


def data():
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    both = {"x": x, "y": (x.sum(1) > 0).astype(np.int64)}
    return {"train": both, "test": both}


options = dict(epochs=3, batch_size=60, slices=4)
run = ef.train(model=make, forward=forward, data=data, metrics=accuracy, workers=1, **options)
report = run.wait(200)
again = ef.train(run.status()["program"], workers="1..2", run_dir="again", **options)
again.wait(200)
net = again.model()["net"]
both = data()["test"]
right = float((net(torch.from_numpy(both["x"])).argmax(1).numpy() == both["y"]).mean())
print(json.dumps({
    "state": report["state"], "metrics": run.metrics, "right": right, "step": again.checkpoint().step,
    "digests": [run.checkpoint().digest, ef.Run("again").checkpoint().digest],
    "same": all((again.weights()[name] == array).all() for name, array in run.weights().items()),
}))
more = ef.resume("again", epochs=500)
while more.status().get("step", 0) < 20:
    pass
more.stop()
print(json.dumps([more.wait()["state"], more.checkpoint().step > 15]))
"""


def test_a_session(tmp_path: Path) -> None:
    (tmp_path / "session.py").write_text(SESSION)
    environment = {**new_mark(), "PYTHONPATH": os.environ.get("PYTHONPATH", os.pathsep.join(sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "session.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    finally:
        end_all(environment)
    assert done.returncode == 0, done.stderr
    told, ended = map(json.loads, done.stdout.splitlines()[-2:])
    assert told["state"] == "finished" and told["step"] == 15 and told["same"]
    assert told["digests"][0] == told["digests"][1]
    assert told["metrics"]["epoch"] == [1, 2, 3] and told["metrics"]["accuracy"][-1] == pytest.approx(
        told["right"]
    )
    assert ended == ["stopped", True]
