"""Several optimizers, and what is not trained, which does not travel: the same digest, whoever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticflow import checkpoint
from elasticflow.run.folder import RunDir

from .conftest import Run, cli

OPTIONS = ("--epochs", 2, "--batch-size", 64, "--slices", 8)
STEPS = 2 * 16
MIDDLE, LATE = f"step {STEPS // 2}", f"step {STEPS - 6}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The digest of one worker and one server, left alone, and the run's folder."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "tuned_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest(), path


def test_it_is_exported_with_the_rest(undisturbed: tuple[str, Path], tmp_path: Path) -> None:
    _, path = undisturbed
    storage = RunDir(path).storage()
    first, last = (
        checkpoint.load_manifest(storage, step) for step in (checkpoint.commits(storage)[0], STEPS)
    )
    names = ["backbone.0.weight", "backbone.0.bias", "backbone.2.weight", "backbone.2.bias"]
    assert [each.name for each in last.frozen] == names and first.frozen == last.frozen
    head = {"head.0.weight": 0, "head.0.bias": 2, "head.2.weight": 1, "head.2.bias": 1}
    assert {each.name: each.part for each in last.entries if each.name != "report"} == head
    kept = {name.partition("#") for name, _ in checkpoint.tensors(storage, last, slots=True)}
    slots = {name: {slot for of, _, slot in kept if of == name and slot} for name in head}
    assert slots["head.0.weight"] == slots["head.0.bias"] == {"exp_avg", "exp_avg_sq", "ema"}
    assert slots["head.2.weight"] == {"square_avg", "momentum_buffer"}
    assert storage.list("frozen") and len(storage.list("frozen")) == 1
    assert cli("export", path, tmp_path / "model.npz").returncode == 0
    exported = np.load(tmp_path / "model.npz")
    assert set(exported) == {*names, *head}
    slots = dict(checkpoint.tensors(storage, last, slots=True))
    assert cli("export", path, tmp_path / "averaged.npz", "--ema").returncode == 0
    averaged = np.load(tmp_path / "averaged.npz")
    assert set(averaged) == set(exported)
    for name in exported:
        expected = slots.get(f"{name}#ema", exported[name])
        assert averaged[name].tobytes() == expected.tobytes()
    assert averaged["head.0.weight"].tobytes() != exported["head.0.weight"].tobytes()
    assert exported["backbone.0.weight"].shape == (64, 20) and exported["backbone.0.weight"].any()


@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (5, 1)])
def test_whoever_dies_and_wherever_it_is_resumed(
    start: Callable[..., Run],
    undisturbed: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    servers: int,
) -> None:
    monkeypatch.setenv("SLICE_S", "0.005")
    options = (*OPTIONS, "--workers", workers, "--servers", servers)
    run = start("tuned_torch.py", *options, shut=[MIDDLE, LATE])
    run.wait_for_workers(workers)
    run.kill("worker-1")
    run.open(MIDDLE)
    run.wait_for_step(STEPS // 2 + 1)
    run.kill("server-0")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    assert run.stop(held_at=LATE).returncode == 0
    run.wait()
    again = run.path, "--resume", "--workers", 2
    with Run(run.path, "", command=["train", "--run-dir", *map(str, again)]) as resumed:
        assert resumed.digest() == undisturbed[0]


def test_another_backbone_is_refused(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start("tuned_torch.py", *OPTIONS, "--workers", 1, shut=[LATE])
    run.wait_for_workers(1)
    assert run.stop(held_at=LATE).returncode == 0
    run.wait()
    monkeypatch.setenv("OTHER", "1")
    refused = cli("train", "--run-dir", run.path, "--resume", "--workers", 1)
    assert refused.returncode == 1
    assert "'backbone.0.bias', which is not trained, has other values now" in refused.stderr


def test_so_many_steps_and_then_the_rest(start: Callable[..., Run], undisturbed: tuple[str, Path]) -> None:
    """A run that ends where it is told to is finished, and goes on from there as if it had not ended."""
    run = start("tuned_torch.py", *OPTIONS, "--workers", 2, "--max-steps", 10)
    assert "all 10 steps of max_steps are done" in run.finish()
    same = cli("train", "--run-dir", run.path, "--resume", "--workers", 1)
    assert same.returncode == 0 and "there is nothing left to do: 10 steps are done" in same.stdout
    again = run.path, "--resume", "--workers", 1, "--max-steps", 0
    with Run(run.path, "", command=["train", "--run-dir", *map(str, again)]) as resumed:
        assert resumed.digest() == undisturbed[0]
