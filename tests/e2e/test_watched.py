"""Evaluations end a run, slow it down, and say what is kept: the same, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow import checkpoint

from .conftest import Run, cli

OPTIONS = ("--epochs", 20, "--batch-size", 32, "--slices", 4, "--evaluate-every", 4, "--keep-checkpoints", 1)
MIDDLE, LATE = "step 14", "step 30"


def best_of(path: Path) -> bytes:
    assert cli("export", path, path / "best.npz", "--best").returncode == 0
    return (path / "best.npz").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes, int]:
    """The digest of one worker and one server, left alone, its best weights, and its last step."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "watched_torch.py", *OPTIONS, "--workers", 1) as run:
        digest = run.digest()
        report = run.report()
        assert report.state == "finished" and report.step < report.steps_total == 160
        assert f"stopped early, after {report.step} of 160 steps: cost was best" in run.output()
        steps = checkpoint.commits(run.dir.storage())
        assert report.best and steps == [report.best.step, report.step]
        assert report.best.value == max(each["accuracy"] for each in report.evaluations)
        assert report.lr_scale < 1
        listed = cli("checkpoint", "list", path).stdout.splitlines()
        assert [line.endswith("best") for line in listed] == [True, False]
        again = cli("train", "--run-dir", path, "--resume", "--workers", 1)
        assert again.returncode == 0 and "there is nothing left to do: stopped early" in again.stdout
        return digest, best_of(path), report.step


def test_whoever_dies_and_wherever_it_is_resumed(
    start: Callable[..., Run], undisturbed: tuple[str, bytes, int]
) -> None:
    run = start("watched_torch.py", *OPTIONS, "--workers", 2, "--servers", 2, shut=[MIDDLE, LATE])
    run.wait_for_workers(2)
    run.kill("worker-1")
    run.open(MIDDLE)
    run.wait_for_step(15)
    run.kill("server-0")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    assert run.stop(held_at=LATE).returncode == 0
    run.wait()
    again = ["train", "--run-dir", str(run.path), "--resume", "--workers", "1"]
    with Run(run.path, "", command=again) as resumed:
        assert resumed.digest() == undisturbed[0]
        assert resumed.report().step == undisturbed[2]
    assert best_of(run.path) == undisturbed[1]
