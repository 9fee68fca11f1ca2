"""Examples of loops of a program's own, beside their plain versions."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import elasticflow as ef

from .conftest import PATIENCE_S, cli, digest_in

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(program: str, folder: Path, *options: object) -> str:
    done = cli("train", EXAMPLES / program, "--run-dir", folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain(program: str, *options: object) -> str:
    command = [sys.executable, str(EXAMPLES / program), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def test_clusters_have_the_same_centres(tmp_path: Path) -> None:
    options = ("--epochs", 10, "--batch-size", 1797, "--workers", 2)
    ran("kmeans/kmeans.py", tmp_path / "run", *options)
    plain("kmeans/plain.py", "--epochs", 10, "--out", tmp_path / "centers.npy")
    centers = ef.Run(tmp_path / "run").weights()["centers"]
    np.testing.assert_allclose(centers, np.load(tmp_path / "centers.npy"), atol=1e-5)


def test_what_is_generated_looks_like_what_is_real(tmp_path: Path) -> None:
    """Both come near to it: a mean of 4, and a spread that is neither none nor twice the right one."""
    torch = pytest.importorskip("torch")
    ran("gan/gan.py", tmp_path / "run", "--epochs", 20, "--batch-size", 128, "--workers", 2, "--slices", 2)
    generator = ef.Run(tmp_path / "run").model()["generator"]
    made = generator(torch.randn(10_000, 8, generator=torch.Generator().manual_seed(0)))
    told = re.fullmatch(r"mean: ([\d.]+), spread: ([\d.]+)\n", plain("gan/plain.py", "--epochs", 20))
    assert told
    for mean, spread in ((made.mean().item(), made.std().item()), map(float, told.groups())):
        assert abs(mean - 4) < 1 and 0.3 < spread < 2.5, (mean, spread)


def test_a_pole_stands_longer_and_the_same_model_by_three(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    options = ("--epochs", 3, "--batch-size", 16, "--slices", 4)
    told = [ran("cartpole/cartpole.py", tmp_path / f"{n}", *options, "--workers", n) for n in (1, 3)]
    assert len({digest_in(each) for each in told}) == 1
    first, *_, last = ef.Run(tmp_path / "1").metrics["length"]
    assert 30 < first < last  # who pushes at random falls after 22 steps, on average


READ = 0.8
"""By chance it would be a tenth."""


def test_digits_are_read_without_elasticflow() -> None:
    assert float(plain("own_loop/plain.py", "--epochs", 4).split()[-1]) > READ


@pytest.mark.parametrize("name", ["push", "average", "push_tensorflow", "average_tensorflow"])
def test_digits_are_read_four_ways(tmp_path: Path, name: str) -> None:
    if "tensorflow" in name and find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    options = ("--epochs", 4, "--batch-size", 64, "--workers", 2, "--slices", 2)
    ran(f"own_loop/{name}.py", tmp_path / "run", *options)
    assert ef.Run(tmp_path / "run").metrics["accuracy"][-1] > READ
