"""A run has the size that the cluster has room for, and says why; both ways in."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticflow.run.folder import RunDir
from tests.clusters.hadoop import HadoopCluster
from tests.e2e.conftest import PATIENCE_S, cli, digest_in

from .conftest import SMALL, Others, YarnRun, ready

Submit = Callable[..., YarnRun]
ROOT = Path(__file__).parents[3]


def test_starts_on_what_is_idle_grows_and_gives_back(
    submit: Submit, others: Others, undisturbed: str
) -> None:
    others.take(5)
    others.wait_until_taken(5)
    run = submit("small_torch.py", "--workers", "1..6", shut=["step 20"])
    run.held_at("step 20")
    status = run.wait_until(lambda s: s.shortage and s.step > 0)
    assert len(ready(status)) == 1 and status.shortage.startswith("1 of 6: "), status
    others.give()
    run.wait_until(lambda s: len(ready(s)) == 6 and not s.shortage)
    assert cli("scale", run.application, 2).returncode == 0
    run.open("step 20")
    run.shut("step 35")
    run.wait_until(lambda s: len(s.workers) == 2)
    run.held_at("step 35")
    run.wait_until_containers(5)  # the ApplicationMaster's, a server's and its standby's, two workers'
    run.open("step 35")
    assert run.digest() == undisturbed
    report = run.report()
    sizes = [size.ready for size in report.sizes]
    assert sizes.index(1) < sizes.index(6), sizes
    assert not report.num_faults, report.faults
    assert run.attempts == 1
    run.leaves_nothing()


def test_a_job_in_prod_preempts_workers(submit: Submit, prod: Others, undisturbed: str) -> None:
    """By its own means, without being asked to give back: YARN gives no notice of it."""
    run = submit("small_torch.py", "--workers", 6, shut=["step 20"], yarn={"give_back": False})
    run.wait_until(lambda s: len(ready(s)) == 6)
    run.held_at("step 20")
    prod.take(3)
    prod.wait_until_taken(3)
    status = run.wait_until(lambda s: len(ready(s)) == 3)
    assert all("preempted" in fault.text for fault in status.faults), status.faults
    prod.give()
    run.wait_until(lambda s: len(ready(s)) == 6)
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_gives_back_before_it_is_preempted(submit: Submit, prod: Others, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", "1..6", shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 6)
    run.held_at("step 20")
    run.open("step 20")
    run.shut("step 30")
    prod.take(2)
    prod.wait_until_taken(2)
    run.held_at("step 30")
    run.wait_until(lambda s: "prod" in s.shortage)
    prod.give()
    run.open("step 30")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_stopped_by_its_name_and_resumed_in_another_size(submit: Submit, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", 2, shut=["step 20"], yarn={"name": "nightly"})
    run.held_at("step 20")
    run.wait_until(lambda s: [worker.state for worker in s.workers] == ["ready"] * 2)
    told = cli("status", "nightly")
    assert told.returncode == 0 and "workers 2/2" in told.stdout, told
    stopping = run.stop("step 20")
    assert stopping.returncode == 0, stopping
    assert run.wait()[0] == 3
    run.leaves_nothing()
    resumed = submit("small_torch.py", "--resume", "--workers", 1, "--servers", 2)
    assert resumed.digest() == undisturbed
    resumed.leaves_nothing()


def test_what_is_on_hdfs_goes_on_here_and_the_other_way_round(
    submit: Submit, undisturbed: str, tmp_path: Path
) -> None:
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    assert run.stop("step 20").returncode == 0
    run.wait()
    listed = cli("checkpoint", "list", run.path)
    assert listed.returncode == 0 and "step 8 " in listed.stdout, listed
    verified = cli("checkpoint", "verify", run.path)
    assert verified.returncode == 0, verified
    here = tmp_path / "here"
    assert cli("checkpoint", "copy", run.path, here, "--step", 8).returncode == 0
    program = Path(__file__).parents[2] / "e2e" / "programs" / "small_torch.py"
    resumed = cli("train", program, "--resume", "--run-dir", here, "--servers", 2, "--workers", 2)
    assert digest_in(resumed.stdout) == undisturbed
    there = f"{run.path}-again"
    earlier = re.findall(r"^step (\d+) ", cli("checkpoint", "list", here).stdout, re.MULTILINE)[-2]
    assert cli("checkpoint", "copy", here, there, "--step", earlier).returncode == 0
    again = cli("submit", run.config, program, "--resume", "--run-dir", there, "--attach")
    assert digest_in(again.stdout) == undisturbed, again
    assert cli("checkpoint", "digest", there).stdout.strip() == undisturbed


def test_the_client_may_vanish(submit: Submit, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    run.held_at("step 20")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.open("step 20")
    attached = cli("attach", run.application)
    assert attached.returncode in (0, 1), attached
    assert undisturbed in cli("checkpoint", "digest", run.application).stdout
    run.leaves_nothing()


def test_the_specification_that_people_edit(hadoop: HadoopCluster, skein_client: Any, tmp_path: Path) -> None:
    """``skein application submit yarn/digits.yaml``, in a folder that is like the project's."""
    hadoop.reset()
    for name in ("yarn", "examples", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as tar:  # its Python is this one
        script = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))
    digits = ROOT / "examples" / "digits" / "digits.py"
    local = cli("train", digits, "--run-dir", tmp_path / "here", "--servers", 1, "--epochs", 30)
    submitted = subprocess.run(
        [sys.executable, "-m", "skein.cli", "application", "submit", "yarn/digits.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    application = submitted.stdout.split()[-1]
    deadline = time.monotonic() + PATIENCE_S
    while application in hadoop.applications() and time.monotonic() < deadline:
        time.sleep(0.1)  # YARN tells nobody
    shown = cli("status", application)
    assert "finished" in shown.stdout, (shown, cli("logs", application).stdout)
    assert digest_in(local.stdout) in cli("checkpoint", "digest", "digits").stdout
    (row,) = json.loads(cli("jobs", application, "--json").stdout)["jobs"]
    local = cli("train", "--resume", "--run-dir", tmp_path / "here", "--epochs", 31)
    resumed = cli("submit", "--attach", "--resume", "--run-dir", row["run"], "--epochs", 31)
    assert resumed.returncode == 0 and digest_in(local.stdout) == digest_in(resumed.stdout), resumed


def test_logs_while_it_runs_and_afterwards(submit: Submit) -> None:
    run = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    run.held_at("step 20")
    while_running = cli("logs", run.application, "--name", "master")
    assert while_running.returncode == 0 and while_running.stdout, while_running
    run.open("step 20")
    run.finish()
    run.leaves_nothing()
    deadline = time.monotonic() + 60
    while (afterwards := cli("logs", run.application, "--name", "master")).returncode:
        assert time.monotonic() < deadline, afterwards
        time.sleep(1)  # nodes bring them together when they find the time
    assert "all 48 steps are done" in afterwards.stdout, afterwards.stdout


@pytest.mark.parametrize("section", [{"queue": "prod"}])
def test_the_dry_run_is_what_is_submitted(submit: Submit, url: str, section: dict[str, str]) -> None:
    run = submit("small_torch.py", "--dry-run", yarn=section)
    code, output = run.wait()
    assert code == 0
    spec = yaml.safe_load(output)
    assert spec["queue"] == "prod" and set(spec["services"]) == {"worker", "server", "pulse"}, spec
    assert [spec["services"][name]["instances"] for name in ("worker", "server")] == [2, 1]
    assert not RunDir(f"{url}/run").path.exists()
    assert SMALL["python"] in output
