"""The same answer in TensorFlow, and with clipping and a schedule; against plain PyTorch too."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from .conftest import Run, cli

# Not imported here: in one process TensorFlow and torch's compiler do not get along.
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
TENSORFLOW = ("--epochs", 4, "--batch-size", 32, "--slices", 4)
EARLY, LATE = "step 10", "step 50"  # of 64


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of two workers and three servers, left alone, in TensorFlow."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "small_tensorflow.py", *TENSORFLOW, "--workers", 2, "--servers", 3) as run:
        return run.digest()


@needs_tensorflow
def test_tensorflow_disturbed(
    start: Callable[..., Run], undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers with one killed, one stopped and continued, one drained."""
    monkeypatch.setenv("SLICE_S", "0.02")
    run = start("small_tensorflow.py", *TENSORFLOW, "--workers", 3, "--servers", 2, shut=[EARLY, LATE])
    run.wait_for_workers(3)
    names = [f"worker-{n}" for n in (1, 2, 3)]
    random.shuffle(names)
    print("killed, stopped, drained at random:", *names)
    run.kill(names[0])
    run.open(EARLY)
    run.wait_for_step(13)
    run.signal(names[1], signal.SIGSTOP)
    run.wait_for_step(run.status().step + 5)
    run.signal(names[1], signal.SIGCONT)
    assert cli("scale", run.path, 2).returncode == 0
    run.open(LATE)
    assert run.digest() == undisturbed


@needs_tensorflow
def test_tensorflow_resumed(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_tensorflow.py", *TENSORFLOW, "--workers", 1, name="stopped", shut=[LATE])
    run.wait_for_step(10)
    assert run.stop(held_at=LATE).returncode == 0
    assert run.wait()[0] == 3
    resumed = start("small_tensorflow.py", "--workers", 2, "--servers", 2, "--resume", name="stopped")
    assert resumed.digest() == undisturbed


def test_clipping_and_schedule(start: Callable[..., Run], tmp_path: Path) -> None:
    """The same digest for 1..3 servers, and what torch.optim with clip_grad_norm_ makes of it."""
    torch = pytest.importorskip("torch")
    options = ("--epochs", 3, "--batch-size", 32, "--slices", 4, "--seed", 5)
    first = start("scheduled.py", *options, "--workers", 1, "--servers", 1)
    digest = first.digest()
    for workers, servers in ((2, 2), (3, 3)):
        run = start("scheduled.py", *options, "--workers", workers, "--servers", servers)
        assert run.digest() == digest
    assert cli("export", first.path, tmp_path / "model.npz").returncode == 0
    weights, bias = _by_hand(torch)
    found = np.load(tmp_path / "model.npz")
    # The bias is float32, and torch takes its norm in that; ours are float64 sums.
    np.testing.assert_allclose(found["weights"], weights, rtol=1e-7)
    np.testing.assert_allclose(found["bias"], bias, rtol=1e-5)


def _by_hand(torch):
    """The same steps in a loop with torch's own optimizer and clipping."""
    from elasticflow.data import Arrays
    from tests.e2e.programs import scheduled as program

    params = program.model()
    leaves = [params["weights"].requires_grad_(), params["bias"].requires_grad_()]
    optimizer = torch.optim.SGD(leaves, lr=1.0, momentum=0.9)
    source = Arrays(**program.data())
    order, step = source.shuffle(5), 0
    for epoch in range(3):
        for first in range(0, 203, 32):
            batch = source.rows(order.rows(epoch, first, min(first + 32, 203)))
            optimizer.zero_grad()
            program.forward(**{k: torch.from_numpy(v) for k, v in batch.items()}, params=params).backward()
            torch.nn.utils.clip_grad_norm_(leaves, 0.7)
            optimizer.param_groups[0]["lr"] = program.learning_rate(step, epoch)
            optimizer.step()
            step += 1
    return leaves[0].detach().numpy(), leaves[1].detach().numpy()
