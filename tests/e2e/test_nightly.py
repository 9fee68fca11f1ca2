"""What a scheduler does every night: time limits, deadlines, dates, and examples/nightly/nightly.sh."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import PATIENCE_S, PROGRAMS, Run, cli, digest_in
from .processes import end_all

SCRIPT = Path(__file__).parents[2] / "examples" / "nightly" / "nightly.sh"
TRAINING = ("--epochs", "3", "--batch-size", "64", "--workers", "1")
STEPS = 3 * 16

ON_A_DAY = """
import elasticflow as ef
import torch


def model():
    return {"w": torch.zeros(1), "optimizer": ef.SGD(lr=0.1)}


def forward(x, params):
    return (params["w"] * x).mean()
"""


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is found by its name, whether it is installed or not."""
    command = tmp_path / "bin" / "elasticflow"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m elasticflow.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")


def nightly(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)


def limited(path: Path, *options: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run that ends by its time limit after its first step, also where starting takes long."""
    for limit in ("8s", "20s", "60s"):
        run = path.with_name(f"{path.name}-{limit}")
        ended = nightly(run, "train", PROGRAMS / "small_torch.py", *TRAINING, "--time-limit", limit, *options)
        if "before the first step" not in ended.stdout:
            break
    return run, ended


@pytest.mark.usefixtures("on_path")
def test_a_time_limit_stops_in_order_and_the_next_night_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same model as that of a run that was never stopped."""
    undisturbed = nightly(tmp_path / "undisturbed", "train", PROGRAMS / "small_torch.py", *TRAINING)
    assert undisturbed.returncode == 0, undisturbed.stderr
    with monkeypatch.context() as slow:
        slow.setenv("SLICE_S", "0.2")
        run, ended = limited(tmp_path / "night", "--deadline", "+10h")
    report = json.loads((run / "report.json").read_bytes())
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert report["state"] == "stopped" and 0 < report["checkpoint_step"] == report["step"] < STEPS
    assert report["met_deadline"] is None and report["finished_at"] is None
    limit = run.name.rpartition("-")[2]
    missing = f"{STEPS - report['step']} of {STEPS} steps are missing"
    assert report["text"] == f"its time limit of {limit} is over: {missing}, go on with --resume"
    last = ended.stdout.splitlines()[-1]
    assert last == f"stopped: {report['text']}: elasticflow train --resume --run-dir {run}"
    assert "deadline open: it ended, not done, at" in ended.stdout
    deadline = json.loads((run / "run.json").read_bytes())["deadline"]

    resumed = nightly(run, "train", PROGRAMS / "small_torch.py", *TRAINING, "--time-limit", "1h")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert digest_in(resumed.stdout) == digest_in(undisturbed.stdout)
    report = json.loads((run / "report.json").read_bytes())
    assert report["deadline"] == deadline and report["met_deadline"] is True
    assert report["finished_at"] < report["deadline_at"] and "deadline met: done at" in resumed.stdout
    assert "deadline met" in cli("status", run).stdout and "deadline met" in cli("report", run).stdout

    done = nightly(run, "train", PROGRAMS / "small_torch.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "it is left alone"


@pytest.mark.usefixtures("on_path")
def test_a_run_that_was_killed_goes_on_and_one_under_way_is_waited_for(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    options = ["--checkpoint-every", 5, "--deadline", "+10h"]
    run = start("small_torch.py", *TRAINING, *options, shut=["step 5", "step 20"])
    run.held_at("step 5")
    run.wait_until(lambda status: [worker.state for worker in status.workers] == ["ready"])
    run.open("step 5")  # the speed since then is not that of its start
    run.held_at("step 20")
    run.wait_until(lambda status: status.eta_at is not None)
    run.wait_until(lambda status: status.checkpoint_step is not None)
    assert " before the deadline " in cli("status", run.path).stdout
    end_all(run.environment)
    killed = json.loads(cli("status", run.path, "--json").stdout)
    assert killed["state"] == "killed" and "go on with --resume: elasticflow train" in killed["text"]

    run.open("step 20")
    run.shut("step 30")
    program = PROGRAMS / "small_torch.py"
    command = [str(SCRIPT), str(run.path), "train", str(program)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True, env=run.environment) as first:
        run.held_at("step 30")
        with subprocess.Popen(command, stdout=pipe, text=True, env=run.environment) as second:
            assert second.stdout is not None
            assert any("going on from step" in line for line in second.stdout), "it looks on"
            run.open("step 30")
            told = second.communicate(timeout=PATIENCE_S)[0]
        assert first.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] == told.splitlines()[-1]
    assert (first.returncode, second.returncode) == (0, 0)


@pytest.mark.usefixtures("on_path")
def test_what_fails_is_told_by_the_exit_code(tmp_path: Path) -> None:
    assert nightly(tmp_path / "run").returncode == 2
    nowhere = nightly(tmp_path / "run", "train", tmp_path / "nowhere.py")
    assert nowhere.returncode == 1 and "nowhere.py: does not exist" in nowhere.stderr
    assert not (tmp_path / "run").exists()


def test_yesterdays_records(tmp_path: Path) -> None:
    """Found by their date, which the run keeps."""
    (tmp_path / "program.py").write_text(ON_A_DAY)
    for day, num in (("2026-11-19", 40), ("2026-11-20", 80)):
        np.savez(tmp_path / f"{day}.npz", x=np.ones(num, np.float32))
    pattern = str(tmp_path / "{yesterday:%Y-%m-%d}.npz")
    where = ("--run-dir", tmp_path / "model-{today:%Y%m%d}", "--date", "2026-11-20")
    ended = cli("train", tmp_path / "program.py", "--data", pattern, "--epochs", 1, "--batch-size", 8, *where)
    assert ended.returncode == 0, ended.stderr
    run = tmp_path / "model-20261120"
    settings: dict[str, Any] = json.loads((run / "run.json").read_bytes())
    assert settings["data"] == str(tmp_path / "2026-11-19.npz") and settings["run_dir"] == str(run)
    assert "records 40 of 40" in ended.stdout
    more = cli("train", "--resume", "--epochs", 2, *where)
    assert more.returncode == 0 and "records 80 of 80" in more.stdout, more.stderr
    missing = cli(
        "train", tmp_path / "program.py", "--data", pattern, "--date", "2026-11-19",
        "--run-dir", tmp_path / "other",
    )  # fmt: skip
    assert missing.returncode == 1 and "2026-11-18.npz" in missing.stderr


def late(run: Path, *command: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(SCRIPT.with_name("late.sh")), str(run), *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.usefixtures("on_path")
def test_somebody_is_told_of_a_run_that_is_late(start: Callable[..., Run], tmp_path: Path) -> None:
    assert late(tmp_path / "none") == (
        1,
        f"{tmp_path}/none: is absent, and not done. See: elasticflow status {tmp_path}/none\n",
    )
    early = start("small_torch.py", *TRAINING, "--deadline", "+8h", shut=["step 20"])
    early.held_at("step 20")
    early.wait_until(lambda status: status.eta_at)
    assert late(early.path) == (0, "")
    early.open("step 20")
    early.finish()
    assert late(early.path) == (0, "")
    missed = start("small_torch.py", *TRAINING, "--deadline", "+1s", shut=["step 20"])
    missed.held_at("step 20")
    missed.wait_until(lambda status: status.met_deadline is False)
    code, text = late(missed.path, "sed", "s/^/told: /")
    assert code == 1 and text.startswith(f"told: {missed.path}: has missed its deadline, 20")
    stopped = start("small_torch.py", *TRAINING, "--deadline", "+8h", shut=["step 20"])
    stopped.held_at("step 20")
    stopped.stop("step 20")
    stopped.wait()
    assert late(stopped.path)[1].startswith(f"{stopped.path}: is stopped, and not done.")
