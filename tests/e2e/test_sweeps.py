"""Sweeps: real runs of one program with other values each; killed, stopped, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import elasticflow as ef
from elasticflow.cluster.presence import presence_of, wait_until_over
from elasticflow.errors import EXIT_UNKNOWN, RunError
from elasticflow.local.process import recorded
from elasticflow.run.folder import RunDir
from elasticflow.sweep.study import FINISHED, WAS_PRUNED

from .conftest import PATIENCE_S, PROGRAMS, Run
from .processes import CLI, Outcome
from .serving import Served

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.whole
PROGRAM = PROGRAMS / "swept_torch.py"
OPTIONS = ("--epochs", 2, "--batch-size", 20, "--workers", 1, "--seed", 5)
GRID = ("--space", "width=4|8", "--sampler", "grid", "--metric", "cost")


def command(folder: Path, *options: object) -> list[str]:
    return [str(each) for each in ("sweep", PROGRAM, "--folder", folder, "--json", *OPTIONS, *options)]


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def again(run: Run, *options: object) -> subprocess.CompletedProcess[str]:
    """The same command, with the same gates, to its end."""
    return subprocess.run(
        [*CLI, *command(run.path, *options)],
        env=run.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def digests(found: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """By what a trial was given, its value, and its model."""
    return {
        json.dumps(each["values"], sort_keys=True): (each["value"], ef.Run(each["run"]).checkpoint().digest)
        for each in found["trials"]
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = Outcome(folder, *command(folder / "sweep", *GRID, "--parallel", 2))
    assert done.code == 0 and not done.left, done.err
    found = json.loads(done.out)
    server = recorded(folder / "sweep" / "forkservers" / "torch.json")
    assert server and server.watch() is None, "it has ended with the sweep"
    assert [each["state"] for each in found["trials"]] == [FINISHED] * 2
    assert found["best"] == min(found["trials"], key=lambda each: each["value"])["trial"]
    return digests(found)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Run]:
    """A sweep of which a trial is held in its second epoch."""
    place = "width 4 step 8"
    with Run(tmp_path / "sweep", "", shut=[place], command=command(tmp_path / "sweep", *GRID)) as run:
        run.held_at(place)
        yield run


def test_a_trial_is_as_a_run_alone(undisturbed: dict[str, tuple[float, str]], tmp_path: Path) -> None:
    values = {"width": 8}
    given = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    done = Outcome(tmp_path, "train", PROGRAM, "--run-dir", "run", *OPTIONS, *given)
    assert done.code == 0, done.err
    alone = ef.Run(tmp_path / "run")
    assert undisturbed[json.dumps(values, sort_keys=True)][1] == alone.checkpoint().digest


def test_a_sweep_that_is_killed_is_gone_on_with(held: Run, undisturbed: dict[str, tuple[float, str]]) -> None:
    """Its trial goes on meanwhile, and nothing is tried twice."""
    held.process.kill()
    held.open("width 4 step 8")
    assert digests(told(again(held, *GRID))) == undisturbed


def test_a_sweep_that_is_told_to_end_leaves_its_trial_and_no_fork_server(
    held: Run, undisturbed: dict[str, tuple[float, str]]
) -> None:
    server = recorded(held.path / "forkservers" / "torch.json")
    for _ in range(2):  # as timeout does
        held.process.terminate()
    assert held.process.wait(PATIENCE_S) == -signal.SIGTERM
    assert server and server.watch() is None, "it has ended with the sweep"
    held.open("width 4 step 8")
    assert digests(told(again(held, *GRID))) == undisturbed


def test_a_trial_that_is_killed_with_the_sweep_goes_on_from_its_checkpoint(
    held: Run, undisturbed: dict[str, tuple[float, str]]
) -> None:
    (trial,) = (each for each in held.path.glob("trial-*") if not RunDir(each).report.exists())
    held.process.kill()
    for pid in ef.Run(trial).status()["workers"][0]["pid"], ef.Run(trial).status()["master"]["pid"]:
        os.kill(pid, signal.SIGKILL)
    held.open("width 4 step 8")
    assert digests(told(again(held, *GRID))) == undisturbed


def test_what_a_trial_told_before_it_was_killed_counts_also_if_it_is_not_told_again(
    held: Run, undisturbed: dict[str, tuple[float, str]]
) -> None:
    """Of one that goes on from its last checkpoint there is nothing left to be evaluated."""
    (trial,) = (each for each in held.path.glob("trial-*") if not RunDir(each).report.exists())
    held.process.kill()
    held.open("width 4 step 8")
    run = RunDir(trial)
    wait_until_over(run, presence_of(run))
    run.report.unlink()  # as if it had been killed before that was written
    assert digests(told(again(held, *GRID))) == undisturbed
    assert run.read_report().evaluations == []  # type: ignore[union-attr]


def test_the_best_evaluation_counts_also_from_before_a_stop(tmp_path: Path) -> None:
    """The sweep has heard of none of them: it was killed before."""
    first, later, folder = "width 4 step 5", "width 4 step 8", tmp_path / "sweep"
    options = ("--space", "width=4|8", "--sampler", "grid", "--trials", 1, "--metric", "cost")
    options = (*options, "--goal", "max", "--count", "best")
    with Run(folder, "", shut=[first, later], command=command(folder, *options)) as run:
        run.held_at(first)
        run.process.kill()
        run.open(first)
        run.held_at(later)
        trial = ef.Run(folder / "trial-0")
        stopping = threading.Thread(target=trial.stop)
        stopping.start()
        watched = Run.__new__(Run)
        watched.dir, watched.process = RunDir(folder / "trial-0"), run.process
        watched.wait_until(lambda status: status.state == "finishing")
        run.open(later)
        stopping.join()
        before = trial.status()["evaluations"]
        (found,) = told(again(run, *options))["trials"]
    after = ef.Run(folder / "trial-0").status()["evaluations"]
    assert [each["epoch"] for each in (*before, *after)] == [1, 2]
    assert found["value"] == before[0]["cost"] > after[0]["cost"]


def test_ctrl_c_stops_trials_with_a_checkpoint(held: Run, undisturbed: dict[str, tuple[float, str]]) -> None:
    (trial,) = (each for each in held.path.glob("trial-*") if not RunDir(each).report.exists())
    held.process.send_signal(signal.SIGINT)
    watched = Run.__new__(Run)
    watched.dir, watched.process = RunDir(trial), held.process
    watched.wait_until(lambda status: status.state == "finishing")
    held.open("width 4 step 8")
    assert held.process.wait(PATIENCE_S) == 3
    assert ef.Run(trial).status()["state"] == "stopped"
    assert digests(told(again(held, *GRID))) == undisturbed


def test_who_is_killed_as_trials_stop_goes_on_with_them_though_they_stop_still(
    held: Run, undisturbed: dict[str, tuple[float, str]]
) -> None:
    (trial,) = (each for each in held.path.glob("trial-*") if not RunDir(each).report.exists())
    held.process.send_signal(signal.SIGINT)
    watched = Run.__new__(Run)
    watched.dir, watched.process = RunDir(trial), held.process
    watched.wait_until(lambda status: status.state == "finishing")
    held.process.kill()
    held.process.wait()
    with Run(held.path, "", command=command(held.path, *GRID, "--parallel", 2)) as second:
        while not RunDir(held.path / "trial-1").settings.exists():
            assert second.process.poll() is None, second.output()
            time.sleep(0.02)  # it has found the first by then
        held.open("width 4 step 8")
        assert second.process.wait(PATIENCE_S) == 0, second.output()
        assert digests(json.loads(second.output())) == undisturbed


def test_a_sweep_whose_folder_is_moved_begins_no_other_trial(tmp_path: Path) -> None:
    """Another process could go on with it beside this one."""
    place, folder = "width 4 step 8", tmp_path / "sweep"
    elsewhere = ("--storage", f"sqlite:///{tmp_path}/study.db", "--run-dir", tmp_path / "trials")
    line = command(folder, *GRID, *elsewhere)
    with Run(folder, "", shut=[place], command=line) as run:
        run.held_at(place)
        folder.rename(tmp_path / "elsewhere")
        run.open(place)
        assert run.process.wait(PATIENCE_S) == 1
        assert "was removed, moved or replaced while this sweep used it" in run.output()
        assert len(list((tmp_path / "trials").iterdir())) == 1


def test_a_first_trial_that_is_killed_on_the_way_does_not_end_a_sweep(held: Run) -> None:
    """It was killed, and its supervisor, which is its master's parent; it had done steps."""
    (trial,) = (each for each in held.path.glob("trial-*") if not RunDir(each).report.exists())
    study = f"sqlite:///{held.path}/study.db"
    while not optuna.load_study(study_name="sweep", storage=study).trials[0].intermediate_values:
        assert held.process.poll() is None, held.output()
        time.sleep(0.02)  # the sweep tells nobody what it has heard
    master = ef.Run(trial).status()["master"]["pid"]
    parent = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (parent, master):
        os.kill(pid, signal.SIGKILL)
    held.open("width 4 step 8")
    assert held.process.wait(PATIENCE_S) == 0, held.output()
    first, second = json.loads(held.output())["trials"]
    assert first["state"] == "failed" and second["state"] == FINISHED


def test_a_trial_that_promises_little_is_stopped(tmp_path: Path) -> None:
    """Those before it, which nobody has run here, were all better after their first epoch."""
    last, folder = "width 5 step 8", tmp_path / "sweep"
    space = ("--space", "width=4..10", "--metric", "cost", "--sampler", "grid")
    first = Outcome(tmp_path, *command(folder, *space, "--trials", 1))
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder}/study.db")
    (before,) = (each for each in study.trials if each.state.is_finished())
    assert first.code == 0 and before.params == {"width": 4}
    for _ in range(5):
        better = optuna.trial.create_trial(
            params=before.params,
            distributions=before.distributions,
            value=1e-9,
            intermediate_values={1: 1e-9, 2: 1e-9},
        )
        study.add_trial(better)
    with Run(folder, "", shut=[last], command=command(folder, *space, "--trials", 7)) as run:
        deadline = time.monotonic() + PATIENCE_S
        while state_of(folder / "trial-1") not in ("finishing", "stopped"):
            assert time.monotonic() < deadline, run.output()
            time.sleep(0.02)  # there may be no master yet
        run.open(last)
        assert run.process.wait(PATIENCE_S) == 0, run.output()
        found = json.loads(run.output())
    assert [each["state"] for each in found["trials"]] == [FINISHED, WAS_PRUNED, *[FINISHED] * 5]
    assert ef.Run(folder / "trial-1").status()["step"] < 12


def state_of(run: Path) -> str:
    with suppress(RunError):
        return str(ef.Run(run).status()["state"])
    return ""


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("--space", "width=4|8", "--metric", "wrong"), ("--metric wrong", "cost, right")),
        (("--space", "width=4|8", "--metric", "epoch"), ("--metric epoch", "cost, right")),
        (("--space", "epochs=0..4", "--metric", "cost"), ("--space epochs=0..4", ">= 1")),
        (("--space", "mode=sync|2", "--metric", "cost"), ("--space mode=sync|2", "expected text")),
        (("--space", "with=4|8", "--metric", "cost"), ("trial 0 failed", "--set with", "'width'")),
        (("--space", "width=8..4", "--metric", "cost"), ("--space width=8..4", "less than")),
        (("--space", "width=4|8", "--metric", "cost", "--trials", -1), ("--trials",)),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, options: tuple[Any, ...], fragments: tuple[str]) -> None:
    done = Outcome(tmp_path, *command(tmp_path / "sweep", *options))
    done.refused(*fragments)


def test_one_value_that_fails_does_not_end_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOILT", "5")
    options = ("--space", "width=4|5|8", "--sampler", "grid", "--metric", "right", "--parallel", 3)
    found = json.loads(Outcome(tmp_path, *command(tmp_path / "sweep", *options)).out)
    states = {each["values"]["width"]: each["state"] for each in found["trials"]}
    assert states == {4: FINISHED, 5: "failed", 8: FINISHED}
    (failed,) = (each for each in found["trials"] if each["state"] == "failed")
    assert "no net has a width of 5" in failed["text"]
    other = Outcome(tmp_path, *command(tmp_path / "sweep", "--space", "width=4|9", "--metric", "right"))
    other.refused("was begun with space width=4|5|8", "--folder")


def test_a_program_that_is_never_evaluated_ends_a_sweep_at_once(tmp_path: Path) -> None:
    program = tmp_path / "swept.py"
    program.write_text(PROGRAM.read_text().replace(', "test": {"x": x[120:], "y": y[120:]}', ""))
    (tmp_path / "gates.py").write_bytes((PROGRAMS / "gates.py").read_bytes())
    words = command(tmp_path / "sweep", *GRID)
    words[1] = str(program)
    done = Outcome(tmp_path, *words)
    done.refused("trial 0 failed: was never evaluated", '"test"')
    assert not (tmp_path / "sweep" / "trial-1").exists()


def test_a_program_that_is_edited_meanwhile_is_told(tmp_path: Path) -> None:
    """Trials of another program could not be compared."""
    place, program = "width 4 step 8", tmp_path / "swept.py"
    program.write_bytes(PROGRAM.read_bytes())
    (tmp_path / "gates.py").write_bytes((PROGRAMS / "gates.py").read_bytes())
    words = command(tmp_path / "sweep", *GRID)
    words[1] = str(program)
    with Run(tmp_path / "sweep", "", shut=[place], command=words) as run:
        run.held_at(place)
        program.write_text(program.read_text() + "\n# other\n")
        run.open(place)
        assert run.process.wait(PATIENCE_S) == 0, run.output()
        first, second = json.loads(run.output())["trials"]
    assert first["state"] == FINISHED
    assert second["state"] == "failed" and "is wanted" in second["text"]


def test_a_service_that_is_away_costs_no_trial(
    tmp_path: Path, undisturbed: dict[str, tuple[float, str]]
) -> None:
    """Three of them counted as failed in a moment, untried: a service may just be begun again."""
    away = command(tmp_path / "sweep", *GRID, "--service", tmp_path / "away", "--parallel", 1)
    for _ in range(3):
        done = subprocess.run([*CLI, *away], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == EXIT_UNKNOWN and "no service is there" in done.stderr, done.stderr
        assert "failed" not in done.stdout
    with Served(tmp_path, 2, slice_s=0) as service:
        trials = command(tmp_path / "sweep", *GRID, "--service", service.folder, "--parallel", 1)
        done = subprocess.run(
            [*CLI, *trials], env=service.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert digests(told(done)) == undisturbed
        assert len(service.tasks()) == 2


def test_trials_are_jobs_of_a_service(tmp_path: Path, undisturbed: dict[str, tuple[float, str]]) -> None:
    with Served(tmp_path, 2, slice_s=0) as service:
        done = subprocess.run(
            [*CLI, *command(tmp_path / "sweep", *GRID, "--service", service.folder)],
            env=service.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert digests(told(done)) == undisturbed
        assert len(service.tasks()) == 2


def test_who_is_killed_before_a_trial_is_handed_in_hands_it_in_later(
    tmp_path: Path, undisturbed: dict[str, tuple[float, str]]
) -> None:
    """Its folder was there, of which its service knew nothing: the trial counted as failed, untried."""
    dies = "import os, sys; from elasticflow.cli import serve; from elasticflow.cli.main import main; "
    dies += "serve.handed_over = lambda *_, **__: os._exit(9); main(sys.argv[1:])"
    with Served(tmp_path, 2, slice_s=0) as service:
        trials = command(tmp_path / "sweep", *GRID, "--service", service.folder, "--parallel", 1)
        killed = subprocess.run([sys.executable, "-c", dies, *trials], env=service.environment)
        assert killed.returncode == 9 and RunDir(tmp_path / "sweep" / "trial-0").settings.exists()
        done = subprocess.run(
            [*CLI, *trials], env=service.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert digests(told(done)) == undisturbed
