"""What README.md and the examples say, done as they say it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from .conftest import PROGRAMS, Run, cli, digest_in

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _commands() -> list[list[str]]:
    """The commands of README's session, in order."""
    lines = re.findall(r"^\$ elasticflow (.*?)(?:#.*)?$", README, re.MULTILINE)
    return [shlex.split(line) for line in lines]


# What it adds to the example does not change what is computed: the rate is the optimizer's.
GATE = """

import sys

sys.path.append("PROGRAMS")
from gates import pass_gate


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return LR
"""


def test_the_session_of_the_readme(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the example as it is, and a gate at step 500 that it does not pass before it is told to stop.

    Who types the rest has some two minutes for it; here a tenth of the epochs will do.
    """
    train, status, scale, chaos, stop, resume, digest, export = _commands()
    assert train[-2:] == ["--epochs", "1000"]
    train[-1] = "100"
    program = tmp_path / train[1]
    program.parent.mkdir(parents=True)
    text = (ROOT / train[1]).read_text()
    (lr,) = re.findall(r"lr=([0-9.]+)", text)
    program.write_text(text + GATE.replace("PROGRAMS", str(PROGRAMS)).replace("LR", lr))
    monkeypatch.chdir(tmp_path)
    expected = start(str(ROOT / train[1]), *train[2:], name="undisturbed").digest()
    run = start("", name="runs/digits-1", command=train, shut=["step 500"])
    run.wait_for_workers(2)
    assert "running" in cli(*status).stdout
    assert cli(*scale).returncode == 0
    run.wait_for_workers(4)
    struck = cli(*chaos[:-1], 6, "--rate", 60, "--seed", 9)
    assert struck.returncode == 0 and "killed" in struck.stdout, struck.stdout + struck.stderr
    assert stop == ["stop", "runs/digits-1"]
    assert run.stop(held_at="step 500").returncode == 0
    assert run.wait()[0] == 3
    resumed = cli(*resume)
    assert resumed.returncode == 0, resumed.stderr
    assert digest_in(resumed.stdout) == expected == cli(*digest).stdout.strip()
    assert cli(*export).returncode == 0
    assert np.load("model.npz")["net.0.weight"].shape == (32, 64)


def test_the_program_in_the_readme(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "digits.py").write_text(program)
    checked = cli("check", tmp_path / "digits.py")
    assert checked.returncode == 0, checked.stderr
    assert "2,410 parameters" in checked.stdout


def test_links_lead_somewhere() -> None:
    folders = (ROOT, ROOT / "docs", ROOT / "ps", *(ROOT / "examples").iterdir())
    for page in [page for folder in folders for page in folder.glob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


EXAMPLES = {
    "digits/digits.py": (30, "accuracy", 0.97, True),
    "digits_tensorflow/digits_tensorflow.py": (25, "accuracy", 0.97, True),
    "diabetes/diabetes.py": (25, "cost", 0.5, False),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples(example: str, tmp_path: Path) -> None:
    """Each reaches what its README says."""
    if "tensorflow" in example and find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    epochs, metric, bound, at_least = EXAMPLES[example]
    trained = cli("train", ROOT / "examples" / example, "--epochs", epochs, "--run-dir", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr
    value = float(re.findall(rf"{metric} (\S+)", trained.stdout)[-1])
    assert value >= bound if at_least else value <= bound
    (promised,) = set(re.findall(rf"^epoch {epochs}, step \d+: test .*$", trained.stdout, re.MULTILINE))
    assert "test cost" in promised


def test_wide_and_deep(tmp_path: Path) -> None:
    """Of fewer records than its README says, so it reaches less. It imports what lies beside it."""
    folder = tmp_path / "wide_and_deep"
    shutil.copytree(ROOT / "examples/wide_and_deep", folder, ignore=shutil.ignore_patterns("data"))
    maker, sizes = folder / "make_data.py", "200_000, 50_000"
    text = maker.read_text()
    assert sizes in text
    maker.write_text(text.replace(sizes, "40_000, 8_000"))
    made = subprocess.run([sys.executable, maker], capture_output=True, text=True, check=True)
    assert "the hidden model has an AUC of" in made.stdout
    program, many = folder / "wide_and_deep.py", ("--batch-size", 1024, "--workers", 2, "--servers", 2)
    trained = cli("train", program, "--epochs", 2, *many, "--run-dir", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr
    assert float(re.findall(r"auc (\S+)", trained.stdout)[-1]) >= 0.76
