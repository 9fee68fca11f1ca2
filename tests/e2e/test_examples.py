"""The examples beside their plain versions: both reach the same, within the spread of the latter's seeds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.examples import EXAMPLES, Example

from .conftest import PATIENCE_S, cli
from .test_nightly import on_path as on_path

ROOT = Path(__file__).parents[2]
SPREADS = 4.2
"""So many standard deviations are three of the difference of two draws."""


def _spread(example: Example) -> float:
    """The standard deviation of the plain version's seeds, as docs/figures.md has it."""
    figures = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    (spread,) = re.findall(rf"^\| {example.name} \| {example.metric} \| [\d.]+ ± ([\d.]+) ", figures, re.M)
    return float(spread)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_it_reaches_what_the_plain_version_does(example: Example, tmp_path: Path) -> None:
    if example.name == "keras_functional" and find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    folder = example.made(tmp_path)
    command = example.theirs(folder, 0, example.epochs)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as plain:
        try:
            ours = cli(*example.ours(folder, tmp_path / "run", example.epochs, 2)[3:])
            assert ours.returncode == 0, ours.stderr
            theirs, _ = plain.communicate(timeout=PATIENCE_S)
        finally:
            plain.kill()
    assert plain.returncode == 0
    found = example.value(ours.stdout), example.value(theirs)
    assert abs(found[0] - found[1]) < SPREADS * _spread(example), found
    if example.name == "resnet":
        _check_averages(folder, tmp_path / "run", theirs, SPREADS * _spread(example))
    if example.name == "hive_clicks":
        described = cli("data", "describe", folder / "data" / "clicks").stdout
        assert "20,000 records" in described and "defaults={'age': ...}" in described
        _check_chances(folder / "data" / "clicks" / "date=2026-11-20", tmp_path, ours.stdout)


def _check_chances(day: Path, folder: Path, trained: str) -> None:
    """What is predicted of a day has a line for each click; the cost there is what the run has told."""
    import pyarrow.parquet as pq

    out = folder / "chances.parquet"
    done = cli("predict", folder / "run", "--data", f"{day}/", "--out", out, "--keep", "date,user")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(out)
    assert len(table) == 4000 and table.column_names == ["date", "user", "chance"]
    evaluated = cli("evaluate", folder / "run", "--data", f"{day}/")
    assert evaluated.returncode == 0, evaluated.stderr
    cost = re.findall(r"cost ([\d.]+)", evaluated.stdout)[-1]
    assert cost == re.findall(r"test cost ([\d.]+)", trained)[-1]


def _check_averages(folder: Path, run: Path, plain: str, near: float) -> None:
    """The moving averages that are exported are as good as the plain version's."""
    assert cli("export", run, folder / "net.pt", "--ema").returncode == 0
    command = [sys.executable, folder / "evaluate.py", folder / "net.pt"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (averages,) = re.findall(r"^averages: ([\d.]+)$", plain, re.M)
    assert abs(float(told.split()[-1]) - float(averages)) < near, (told, averages)


def test_a_model_that_is_worse_does_not_go_out(
    on_path: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three nights: the second begins where the first ended, and of the third something is wrong."""
    (example,) = (each for each in EXAMPLES if each.name == "nightly")
    folder = example.made(tmp_path)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    models, told = [], []
    for day, code in (("2026-11-18", 0), ("2026-11-19", 0), ("2026-11-20", 9), ("2026-11-20", 9)):
        command = [folder / "night.sh", day]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
        assert done.returncode == code, done.stdout + done.stderr
        models.append((tmp_path / "sales.pt").read_bytes())
        told.append(done.stdout)
    assert models[0] != models[1] == models[2] == models[3]
    first, second = (example.value(re.findall(r"^runs/.*$", text, re.M)[0]) for text in told[:2])
    assert second < 1.5 * first and "begin as in" in told[1] and "records of" not in told[3]
