"""A run has the size that the cluster has room for, and says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.run.folder import RunDir
from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PATIENCE_S, cli, digest_in
from tests.e2e.processes import CLI

from .conftest import Blockers, SlurmRun, ready

Submit = Callable[..., SlurmRun]
ROOT = Path(__file__).parents[3]


def test_starts_on_what_is_idle_and_grows(submit: Submit, blockers: Blockers, undisturbed: str) -> None:
    blockers.take(7)
    run = submit("small_torch.py", "--workers", "1..6", shut=["step 20"])
    run.held_at("step 20")
    status = run.wait_until(lambda s: "no idle GPU" in s.shortage)
    assert len(ready(status)) == 1 and status.step > 0, status
    assert status.shortage.startswith("1 of 6: partition gpu has no idle GPU"), status.shortage
    blockers.give()
    run.wait_until(lambda s: len(ready(s)) == 6 and not s.shortage)
    run.open("step 20")
    assert run.digest() == undisturbed
    sizes = [size.ready for size in run.report().sizes]
    assert sizes.index(1) < sizes.index(6), sizes
    assert not run.report().num_faults
    run.leaves_nothing()


def test_an_urgent_job_takes_three_workers_and_gives_them_back(
    submit: Submit, blockers: Blockers, undisturbed: str
) -> None:
    blockers.take(4)  # the other GPUs: an urgent job preempts whoever it likes
    run = submit("small_torch.py", "--workers", 4, shut=["step 20"], slurm={"patience_s": 2})
    run.wait_until(lambda s: len(ready(s)) == 4)
    run.held_at("step 20")
    blockers.give()
    urgent = Blockers(run.cluster)
    urgent.take(7, "urgent")
    status = run.wait_until(lambda s: len(ready(s)) == 1)
    drained = [event.text for event in status.events if "is drained" in event.text]
    assert len(drained) == 3 and all("preempted" in text for text in drained), status.events
    urgent.give()
    run.wait_until(lambda s: len(ready(s)) == 4)
    run.open("step 20")
    assert run.digest() == undisturbed
    report = run.report()
    assert report.num_faults == 0 and report.steps_redone == 0, report.faults
    run.leaves_nothing()


def test_scaled_and_stopped_by_its_jobs_name(submit: Submit, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", 2, shut=["step 20"], slurm={"job_name": "nightly"})
    run.held_at("step 20")
    assert cli("scale", "nightly", 1).returncode == 0
    run.open("step 20")
    run.shut("step 30")
    run.wait_until(lambda s: len(s.workers) == 1)
    run.held_at("step 30")
    run.wait_until_squeue(lambda: len(run.cluster.jobs()) == 3)  # the leader's two components, one worker
    told = cli("status", "nightly")
    assert told.returncode == 0 and "target: 1 workers (asked for by scale)" in told.stdout, told
    assert "nightly" in run.config.read_text() and cli("status", run.job).returncode == 0
    stopping = run.stop("step 30")
    assert stopping.returncode == 0, stopping
    assert run.wait()[0] == 3
    run.leaves_nothing()
    resumed = submit("small_torch.py", "--resume", "--workers", 2)
    assert resumed.digest() == undisturbed
    listed = cli("jobs", "nightly", "--json")
    (row,) = json.loads(listed.stdout)["jobs"]
    assert listed.returncode == 0 and row["run"] == str(run.path) and row["state"] == "finished", listed


def test_the_client_may_vanish(submit: Submit, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    run.held_at("step 20")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.open("step 20")
    attached = cli("attach", run.job)
    assert attached.returncode in (0, 1), attached
    assert undisturbed in cli("checkpoint", "digest", run.job).stdout
    run.leaves_nothing()


def test_the_batch_script_that_people_edit(cluster: SlurmCluster, tmp_path: Path) -> None:
    for folder in ("slurm", "examples", "conf"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    options = ["examples/digits/digits.py", "--servers", "1", "--epochs", "30"]
    local = subprocess.run(
        [*CLI, "train", *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    submitted = subprocess.run(
        ["sbatch", "--parsable", "slurm/digits.sbatch"],
        cwd=tmp_path,
        env={**cluster.environment, "PATH": path, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]},
        capture_output=True,
        text=True,
        check=True,
    )
    job = submitted.stdout.strip()
    run = RunDir(tmp_path / "runs" / f"digits-job{job}")
    deadline = time.monotonic() + PATIENCE_S
    while not run.report.exists() and time.monotonic() < deadline:
        time.sleep(0.1)  # nothing to wait on
    assert digest_in(local.stdout) in cli("checkpoint", "digest", job).stdout
    assert "finished" in cli("status", "digits").stdout
    cluster.wait_until_idle()


def test_two_runs_share_four_gpus_without_anybody_telling_them(
    submit: Submit, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds none free; the first, which sees it wait, gives back half."""
    monkeypatch.setenv("SLICE_S", "0.8")  # both have steps to make for as long as that takes: no gate is shut
    places = {"workers": [{"partition": "spare"}], "patience_s": 5}
    first = submit("small_torch.py", "--workers", "1..4", slurm=places, name="first")
    first.wait_until(lambda s: len(ready(s)) == 4)
    second = submit("small_torch.py", "--workers", "1..4", slurm=places, name="second")
    second.wait_until(lambda s: len(ready(s)) == 2)
    status = first.wait_until(lambda s: s.shortage.startswith("2 of 4: run small_torch ("))
    drained = [event.text for event in status.events if "is drained: leaves: run small_torch (" in event.text]
    assert len(drained) == 2 and "waits for workers, and has 0" in drained[0], status.events
    assert {first.digest(), second.digest()} == {undisturbed}
    assert not first.report().num_faults and not second.report().num_faults
