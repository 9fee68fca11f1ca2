"""Compressed on the way: rounded to bfloat16, the same digest; the largest elements alone, it learns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, cli

OPTIONS = ("--epochs", 2, "--batch-size", 16, "--slices", 4, "--compression", "bf16")
STEPS = 2 * 20
MIDDLE, LATE = "step 20", f"step {STEPS - 6}"
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, left alone."""
    with Run(tmp_path_factory.mktemp("alone") / "run", "wide_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


@pytest.mark.parametrize(("shared", "overlap"), [(True, True), (False, True), (False, False)])
def test_the_same_answer_rounded(
    start: Callable[..., Run], alone: str, tmp_path: Path, shared: bool, overlap: bool
) -> None:
    """Of three workers one is killed, and then one of two servers."""
    path = tmp_path / "ways.yaml"
    path.write_text(
        f"shared_memory: {str(shared).lower()}\noverlap: {str(overlap).lower()}\nsnapshot_s: 0.1\n"
    )
    options = (*OPTIONS, "--config", path, "--workers", 3, "--servers", 2)
    run = start("wide_torch.py", *options, shut=[MIDDLE, LATE])
    run.wait_for_workers(3)
    run.kill("worker-2")
    run.open(MIDDLE)
    run.wait_for_step(STEPS // 2 + 3)
    run.kill("server-1")
    run.wait_until(lambda status: status.generation == 2 and not status.regrouping)
    run.open(LATE)
    assert run.digest() == alone


def test_it_is_another_model(alone: str, tmp_path: Path) -> None:
    options = (*OPTIONS[:-1], "none", "--workers", 1)
    with Run(tmp_path / "run", "wide_torch.py", *options) as run:
        assert run.digest() != alone
    resumed = cli("train", "--resume", "--run-dir", tmp_path / "run", "--epochs", 3, "--compression", "bf16")
    assert resumed.returncode == 1
    assert "was made with compression none, now it is bf16" in resumed.stderr, resumed.stderr


def test_the_largest_elements_alone(tmp_path: Path) -> None:
    options = ("--epochs", 10, "--compression", "top-k", "--top-k", 0.05, "--workers", 2, "--servers", 2)
    done = cli("train", DIGITS, "--run-dir", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    accuracy = re.findall(r"accuracy ([0-9.]+)", done.stdout + done.stderr)[-1]
    assert float(accuracy) > 0.9
    assert "the same answer is not promised" in done.stdout + done.stderr
    assert "top-k: the same answer is not promised" in cli("report", tmp_path / "run").stdout
