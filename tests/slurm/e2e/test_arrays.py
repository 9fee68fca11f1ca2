"""Runs that are tasks of a job array, and jobs that depend on a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elasticflow.run.folder import RunDir
from tests.clusters.processes import wait
from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PROGRAMS, cli
from tests.e2e.processes import CLI

from .conftest import SMALL, WORK

PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def clean(cluster: SlurmCluster) -> Iterator[None]:
    cluster.reset()
    yield
    cluster.cancel_all()
    cluster.wait_until_idle()


@pytest.fixture
def script(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., str]:
    """Submits a batch script that leads a run, in ``tmp_path/run`` and a task's number: the job's id."""

    def make(program: Path, *options: str, run: str = "run", **settings: object) -> str:
        section = {"leader": {"partition": "cpu"}, "workers": [{"partition": "cpu"}], "gpus": 0, **SMALL}
        conf = tmp_path / f"{run}.yaml"
        conf.write_text(
            yaml.safe_dump({"backend": "slurm", **WORK, "workers": 1, **settings, "slurm": section})
        )
        lead = shlex.join([*CLI, "lead", "--config", str(conf), str(program)])
        made = tmp_path / f"{run}.sbatch"
        folder = shlex.quote(str(tmp_path / run))
        made.write_text(f"#!/bin/bash\nexec {lead} --run-dir {folder}$SLURM_ARRAY_TASK_ID\n")
        output = f"--output={tmp_path}/{run}-%a.out"
        return cluster.run("sbatch", "--parsable", "--mem=1G", output, *options, str(made)).strip()

    return make


def test_runs_that_are_tasks_of_an_array(
    cluster: SlurmCluster, script: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last has the array's own id: it signs itself alone, and at its time limit is requeued alone."""
    monkeypatch.setenv("SLICE_S", "0.05")
    array = script(PROGRAMS / "small_torch.py", "--requeue", "--array=0-1", epochs=100_000)
    runs = [RunDir(tmp_path / f"run{task}") for task in range(2)]
    last = f"{array}_1"

    def told(field: str) -> list[str]:
        """Of both tasks, which are running or wait, the first before the second."""
        printed = cluster.run("squeue", "-h", "-O", f"JobArrayId:0|,{field}:0").splitlines()
        return [line.partition("|")[2] for line in sorted(printed) if line.startswith(f"{array}_")]

    def signed() -> bool:
        words = told("Comment")
        return len(words) == 2 and all(
            word.endswith(f" leader {run.folder}") for word, run in zip(words, runs, strict=True)
        )

    def story() -> str:
        return (
            f"{told('Comment')} {told('RestartCnt')} {[path.read_text() for path in tmp_path.glob('*.out')]}"
        )

    def until(what: Callable[[], object], words: str) -> None:
        wait(what, words, PATIENCE_S, story, every_s=0.2)

    def trains(run: RunDir) -> bool:
        return ": running, " in cli("status", str(run.folder)).stdout

    until(signed, "both have signed their own jobs")
    until(lambda: all(map(trains, runs)), "both train")
    minutes, seconds = map(int, told("TimeUsed")[1].split(":"))
    cluster.run("scontrol", "update", f"JobId={last}", f"TimeLimit={minutes + 1 + (seconds >= 30)}")
    until(lambda: told("RestartCnt")[1:] == ["1"], "the last is requeued")
    assert told("RestartCnt") == ["0", "1"]
    cluster.run("scontrol", "update", f"JobId={last}", "TimeLimit=UNLIMITED")
    until(lambda: all(map(trains, runs)), "both train again")
    assert signed(), story()
    assert str(runs[1].folder) in cli("status", last).stdout
    for run in runs:
        cli("stop", str(run.folder))
        assert run.report.exists(), story()


def test_a_job_that_depends_on_a_run(
    cluster: SlurmCluster, script: Callable[..., str], tmp_path: Path
) -> None:
    """afterok: after a run that has finished, and never after one that failed."""
    failing = tmp_path / "failing.py"
    failing.write_text("def model():\n    raise ValueError('bad')\n\n\ndef forward(params):\n    return 0\n")
    leaders = script(PROGRAMS / "small_torch.py", run="good"), script(failing, run="bad")
    options = ["--parsable", "--mem=100M", "--output=/dev/null"]
    good, bad = (
        cluster.run("sbatch", *options, f"--dependency=afterok:{leader}", "--wrap=true").strip()
        for leader in leaders
    )

    def told(job: str, field: str) -> str:
        return cluster.run("squeue", "-h", "-t", "all", "-j", job, "-O", f"{field}:0").strip()

    def story() -> str:
        return str([path.read_text() for path in tmp_path.glob("*.out")])

    wait(lambda: told(good, "State") == "COMPLETED", "it has run", PATIENCE_S, story, every_s=0.2)
    never = "DependencyNeverSatisfied"
    wait(lambda: told(bad, "Reason") == never, "it never will", PATIENCE_S, story, every_s=0.2)
    assert RunDir(tmp_path / "good").report.exists() and told(bad, "State") == "PENDING"
