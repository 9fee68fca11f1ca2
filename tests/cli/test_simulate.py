"""``elasticflow simulate``: what it prints and writes, and what it says about wrong usage."""

import json
from pathlib import Path

import pytest

from elasticflow.cli.main import main

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "scheduler"
TRACE = DATA / "traces" / "195job.csv"


@pytest.fixture
def short(tmp_path):
    """The first jobs of a trace, away from its profiles."""
    path = tmp_path / "short.csv"
    path.write_text("\n".join(TRACE.read_text().splitlines()[:25]) + "\n")
    return str(path)


PROFILES = ["--profiles", str(DATA / "throughputs_A100")]


def test_a_summary(short, capsys):
    assert main(["simulate", short, "--gpus", "64", *PROFILES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "elastic on 64 GPUs"
    assert "of 24 met" in lines[1] and lines[2].endswith("0 late")


def test_json_and_a_shape(short, capsys):
    shape = str(DATA / "cluster_specs" / "n8g8.csv")
    assert main(["simulate", short, "--shape", shape, "--policy", "edf", "--json", *PROFILES]) == 0
    assert json.loads(capsys.readouterr().out)["num_gpus"] == 64


def test_metrics_and_pictures(short, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    bad = ["--profile-error", "0.2", "--mtbf-days", "1", "--slow", "0.1", "--seed", "3"]
    assert main(["simulate", short, "--gpus", "64", "--out", str(out), *bad, *PROFILES]) == 0
    assert {"metrics.json", "gantt.png", "utilisation.png", "deadlines.png"} <= {
        one.name for one in out.iterdir()
    }
    assert json.loads((out / "metrics.json").read_text())["jobs"] == 24


def test_quotas(short, tmp_path, capsys):
    quotas = tmp_path / "quotas.csv"
    quotas.write_text("user,weight,most_gpus\n,1,4\n")
    assert main(["simulate", short, "--gpus", "64", "--quotas", str(quotas), *PROFILES]) == 0
    quotas.write_text("user,weight\nada,much\n")
    assert main(["simulate", short, "--gpus", "64", "--quotas", str(quotas), *PROFILES]) == 1
    assert "its columns are user, weight, most_gpus" in capsys.readouterr().err


def test_measured_overheads(short, tmp_path, capsys):
    file = tmp_path / "digits.64.json"
    file.write_text('{"overheads": {"same_s": 0.1, "base_s": 3.0, "step_s": 0.0, "failure_s": 30}}')
    assert main(["simulate", short, "--gpus", "64", "--overheads", str(file), *PROFILES]) == 0
    file.write_text('{"points": []}')
    assert main(["simulate", short, "--gpus", "64", "--overheads", str(file), *PROFILES]) == 1
    assert "holds no overheads" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--gpus", "12"], "12 GPUs do not fill nodes of 8"),
        (["--gpus", "64", "--policy", "best"], "no policy 'best'"),
        (["--gpus", "64", "--profile-error", "2"], "each is a part"),
        (["--gpus", "64", "--mtbf-days", "0"], "must be above 0"),
        (["--gpus", "64", "--profiles", "/nowhere"], "holds no profile"),
    ],
)
def test_errors(short, capsys, options, words):
    assert main(["simulate", short, *PROFILES, *options]) == 1
    assert words in capsys.readouterr().err
