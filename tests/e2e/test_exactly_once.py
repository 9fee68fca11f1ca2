"""Every record of every epoch is applied exactly once: counted by the parameters, read with plain NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticflow.cli.connection import Connection
from elasticflow.run.telling import LiveStatus
from elasticflow.wire.messages import ScaleRequest

from .conftest import Run, cli

EPOCHS, STEPS = 5, 13


def _living(status: LiveStatus, killed: list[str]) -> list[str]:
    """Workers that take part, and are not those killed of which the master does not know yet."""
    return [w.name for w in status.workers if w.state == "ready" and w.name not in killed]


@pytest.mark.parametrize("seed", [1])
def test_every_record_once_an_epoch(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """203 records in batches of 16, the last of 11; two kill -9, one more worker and two fewer on the way."""
    monkeypatch.setenv("SLICE_S", "0.01")
    rng = random.Random(seed)
    options = ("--epochs", EPOCHS, "--batch-size", 16, "--workers", 3, "--servers", 2, "--seed", seed)
    late = f"step {EPOCHS * STEPS - 10}"
    run = start("counting.py", *options, shut=[late])
    killed: list[str] = []
    steps = sorted(rng.sample(range(2, EPOCHS * STEPS - 15), 4))
    for step, what in zip(steps, rng.sample(["kill", "kill", "4", "2"], 4), strict=True):
        status = run.wait_until(lambda s, step=step: s.step >= step and _living(s, killed))
        if what == "kill":
            killed.append(rng.choice(_living(status, killed)))
            run.kill(killed[-1])
        else:
            with Connection(run.dir) as connection:
                connection.ask(ScaleRequest(workers=int(what)))
    run.open(late)
    run.finish()
    file = tmp_path / "counted.npz"
    assert cli("export", run.path, file).returncode == 0
    with np.load(file) as arrays:
        assert arrays["seen"].shape == (203,)
        assert (arrays["seen"] == -EPOCHS).all(), arrays["seen"]
