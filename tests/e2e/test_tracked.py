"""Curves of real runs: no step twice and none that was undone, and no tracker that a run waits for."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticflow.run.tracks import TrackDir

from .conftest import PATIENCE_S, Run, cli
from .processes import end_all, marked

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--checkpoint-every", 5)
HEAVY = ("tensorboardX", "mlflow", "wandb", "prometheus_client", "elasticflow.trackers")


def drawing(run: Run) -> list[int]:
    """Processes that draw it, from their first moment on."""
    return [pid for pid in marked(run.environment) if b"track" in words_of(pid)]


def drawn(run: Run) -> list[dict[str, str]]:
    """The lines of the table, once it is whole."""
    tracks, deadline = TrackDir(run.path / "tracks"), time.monotonic() + PATIENCE_S
    while not (tracks.path / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # whoever draws it may begin when the run is over, on a busy machine
    while drawing(run) and time.monotonic() < deadline:  # one that goes on after another
        time.sleep(0.05)
    tracks.wait_until_free(PATIENCE_S)
    return list(csv.DictReader((tracks.path / "metrics.csv").read_text().splitlines()))


def words_of(pid: int) -> list[bytes]:
    """None of one that has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def check(run: Run, rows: list[dict[str, str]], first: int = 0) -> None:
    """Each step once, in order; all evaluations of the report; what the run is."""
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(set(steps)), steps
    report = run.report()
    assert steps[-1] == report.step == report.steps_total
    told = {each["step"]: each["accuracy"] for each in report.evaluations}
    tests = {int(row["step"]): float(row["test/accuracy"]) for row in rows if row["test/accuracy"]}
    assert {step: value for step, value in tests.items() if step > first} == told
    about = json.loads((run.path / "tracks" / "about.json").read_bytes())
    assert about["digest"] == run.digest() and about["state"] == "finished"
    assert about["report"] == str(run.dir.report) and about["fingerprint.torch"]
    assert all(float(row["train/loss"]) > 0 for row in rows if row["train/loss"])


def test_no_step_is_drawn_twice_though_the_master_is_killed(start: Callable[..., Run]) -> None:
    run = start("small_torch.py", *OPTIONS, "--track", "csv,tensorboard", shut=["step 20", "step 35"])
    run.held_at("step 20")
    run.kill("master")
    run.open("step 20")
    run.held_at("step 35")
    run.wait_until(lambda status: status.master.incarnation == 2)
    run.open("step 35")
    run.finish()
    check(run, drawn(run))
    assert list((run.path / "tracks" / "tensorboard").glob("events*"))


def test_who_draws_is_killed_and_the_next_one_draws_all(start: Callable[..., Run]) -> None:
    run = start("small_torch.py", *OPTIONS, "--track", "csv", shut=["step 20", "step 35"])
    for gate in ("step 20", "step 35"):
        run.held_at(gate)
        (first,) = drawing(run)
        os.kill(first, signal.SIGKILL)
        run.wait_until(lambda status, gone=first: not Path(f"/proc/{gone}").exists())
        run.open(gate)
    run.finish()
    check(run, drawn(run))
    assert run.dir.master_log.read_text().count("was killed by SIGKILL; it is begun again") == 2


def test_who_draws_is_killed_after_its_master(start: Callable[..., Run]) -> None:
    """The next master has not begun it, and hears nothing of its end."""
    run = start("small_torch.py", *OPTIONS, "--track", "csv", shut=["step 20"])
    run.held_at("step 20")
    (first,) = drawing(run)
    run.kill("master")
    run.wait_until(lambda status: status.master.incarnation == 2)
    os.kill(first, signal.SIGKILL)
    run.wait_until(lambda status: drawing(run) not in ([], [first]))
    run.open("step 20")
    run.finish()
    check(run, drawn(run))


def test_nor_though_everything_is_killed_and_the_run_resumed(start: Callable[..., Run]) -> None:
    first = start("small_torch.py", *OPTIONS, "--track", "csv", name="run", shut=["step 30"])
    first.held_at("step 30")
    first.wait_until(lambda status: status.checkpoint_step)  # which, depends on how busy the machine is
    begun = first.path / "tracks" / "metrics.csv"
    end_all(first.environment)
    first.end()
    first.dir.address.unlink()
    before = list(csv.DictReader(begun.read_text().splitlines())) if begun.exists() else []
    assert all(int(row["step"]) <= 30 for row in before)
    second = start("small_torch.py", "--resume", name="run")
    second.finish()
    rows = drawn(second)
    check(second, rows, first=second.report().start_step)
    kept = [{name: value for name, value in row.items() if value} for row in rows[: len(before)]]
    assert kept == [{name: value for name, value in row.items() if value} for row in before]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a module of this name in the place of a tracker's library."""

    def put(name: str, text: str) -> None:
        folder = tmp_path / "fakes"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        before = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{before}")

    return put


def test_one_that_hangs_is_not_waited_for_and_changes_no_bit(
    start: Callable[..., Run], fake: Callable[[str, str], None]
) -> None:
    alone = start("small_torch.py", *OPTIONS)
    digest = alone.digest()
    fake("wandb", "import threading\nthreading.Event().wait()\n")
    run = start("small_torch.py", *OPTIONS, "--track", "wandb,csv")
    assert "curves: are still being drawn" in run.finish()
    assert run.digest() == digest
    assert TrackDir(run.path / "tracks").is_held()  # it hangs still, and the command has ended
    assert len(marked(run.environment)) == 1
    check(run, drawn(run))  # by the other; then it is ended
    assert "has not ended" in TrackDir(run.path / "tracks").read_problems()["wandb"]
    assert "wandb" in (run.dir.logs / "tracking.log").read_text()


def test_one_that_fails_says_so_once_and_costs_nothing(
    start: Callable[..., Run], fake: Callable[[str, str], None]
) -> None:
    fake("tensorboardX", "raise OSError('no such\\ndisk')\n")
    run = start("small_torch.py", *OPTIONS, "--track", "tensorboard,csv")
    assert "tracker tensorboard: OSError: no such disk" in run.finish()
    check(run, drawn(run))
    assert (run.dir.logs / "tracking.log").read_text().count("no such disk") == 1


def test_one_that_is_killed_is_nobodys_concern(start: Callable[..., Run]) -> None:
    run = start("small_torch.py", *OPTIONS, "--track", "csv", shut=["step 20"])
    run.held_at("step 20")
    commands = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in marked(run.environment)
    }
    (tracking,) = [pid for pid, words in commands.items() if b"track" in words]
    os.kill(tracking, signal.SIGKILL)
    run.open("step 20")
    run.finish()
    done = cli("track", run.path)  # draws the rest
    assert done.returncode == 0, done.stderr
    check(run, drawn(run))


def test_by_hand_of_a_run_that_is_over(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start("small_torch.py", *OPTIONS)
    run.finish()
    refused = cli("track", run.path)
    assert refused.returncode == 1 and "which tracker?" in refused.stderr
    monkeypatch.chdir(run.path.parent)
    for path in (run.path, f"./{run.path.name}"):
        done = cli("track", path, "--with", "csv,mlflow", "--to", tmp_path / "there")
        assert done.returncode == 0 and " points of " in done.stdout, done.stderr
    rows = list(csv.DictReader((tmp_path / "there" / "metrics.csv").read_text().splitlines()))
    assert [row for row in rows if row["test/accuracy"]] and int(rows[-1]["step"]) == run.report().step
    assert not (run.path / "tracks").exists()
    about = json.loads((tmp_path / "there" / "about.json").read_bytes())
    assert about["run"] == str(run.path) and about["report"] == str(run.dir.report)


LOG_ON_A_FULL_DISK = """
import logging
class Full:
    def write(self, text): raise OSError("full")
log = logging.getLogger(__name__)
log.addHandler(logging.StreamHandler(Full()))
log.error("no")
raise OSError("full")
"""


def test_a_library_whose_own_log_cannot_be_written_says_so_once(
    start: Callable[..., Run], fake: Callable[[str, str], None], tmp_path: Path
) -> None:
    run = start("small_torch.py", *OPTIONS)
    run.finish()
    fake("wandb", LOG_ON_A_FULL_DISK)
    done = cli("track", run.path, "--with", "wandb", "--to", tmp_path / "there")
    assert done.returncode == 1
    assert done.stderr == "Warning: tracker wandb: OSError: full; it is begun again later\n"
    assert done.stdout.endswith(f" points of {run.path}; not all in wandb: OSError: full\n")


def test_what_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(__file__).parent / "programs" / "small_torch.py"
    done = cli("train", program, "--run-dir", tmp_path / "run", "--track", "csv,tensorbord")
    assert done.returncode == 1 and "'tensorbord' is no tracker; allowed are" in done.stderr
    assert not (tmp_path / "run").exists()


ALL_OPTIONS = """
import contextlib, io
from elasticflow.cli.verbs import VERBS, parser
for verb in VERBS:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        parser().parse_args([verb, "--help"])
assert "elasticflow.cli.track_options" in sys.modules
"""


@pytest.mark.parametrize("module", ["elasticflow.master.server", "elasticflow.cli.main", "elasticflow"])
def test_nothing_of_trackers_is_imported_unless_they_are_used(module: str) -> None:
    code = f"import sys, {module}\n"
    if module.endswith("main"):
        code += ALL_OPTIONS
    code += f"print([name for name in sys.modules if name.startswith({HEAVY!r})])"
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", (done.stdout, done.stderr)
