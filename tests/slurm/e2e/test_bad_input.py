"""What cannot be is told at once, in one message with SLURM's own words, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticflow.cli.submit  # noqa: F401  (so that another user, who may not read it, need not)
import elasticflow_slurm.submit  # noqa: F401
from elasticflow.cli import main
from elasticflow.process.stamps import unstamped
from tests.clusters.slurm import SlurmCluster, require
from tests.e2e.conftest import PROGRAMS, cli
from tests.e2e.processes import Outcome, assert_told

from .conftest import SMALL, WORK, SlurmRun

NOBODY = 65534


def submitted(folder: Path, *options: object, program: str = "", **section: Any) -> Outcome:
    """How ``submit`` ends, in an empty folder."""
    folder.mkdir()
    default = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}], **SMALL}
    config = folder.parent / "slurm.yaml"
    config.write_text(yaml.safe_dump({"backend": "slurm", **WORK, "slurm": {**default, **section}}))
    return Outcome(folder, "submit", config, program or PROGRAMS / "small_torch.py", *options)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"workers": [{"partition": "gpus"}]}, ("slurm.workers", "gpus", "invalid partition")),
        ({"leader": {"partition": "cpus"}}, ("slurm.leader", "takes no master", "invalid partition")),
        ({"server_mem": "500T"}, ("slurm.leader", "takes no parameter servers", "--mem=500T")),
        ({"gpus": 16}, ("slurm.workers", "Requested node configuration is not available")),
        ({"mem": "500T"}, ("slurm.workers",)),
        ({"gpu": 1}, ("slurm", "gpu", "Known keys: ", "gpus")),
        ({"gpus": "two"}, ("slurm.gpus",)),
        ({"time": "soon"}, ("slurm.time", "'soon'", "1:30:00")),
        ({"workers": []}, ("slurm.workers", "{partition: gpu}")),
    ],
)
def test_settings_that_cannot_be(
    cluster: SlurmCluster, tmp_path: Path, section: dict[str, Any], words: tuple[str, ...]
) -> None:
    outcome = submitted(tmp_path / "here", **section)
    outcome.refused(*words)
    assert outcome.found == []
    assert not cluster.jobs()


def test_more_time_than_the_partition_gives(cluster: SlurmCluster, tmp_path: Path) -> None:
    """SLURM would take the leader, and let it wait for ever."""
    cluster.run("scontrol", "update", "PartitionName=cpu", "MaxTime=1-0")
    try:
        outcome = submitted(tmp_path / "here", leader_time="2-0")
    finally:
        cluster.run("scontrol", "update", "PartitionName=cpu", "MaxTime=UNLIMITED")
    outcome.refused("slurm.leader_time: 2-0", "partition cpu", "1 d 0 h")
    assert outcome.found == [] and not cluster.jobs()


def test_data_that_are_not_there(cluster: SlurmCluster, tmp_path: Path) -> None:
    outcome = submitted(tmp_path / "here", "--data", tmp_path / "day=2026-11-20" / "*.npz")
    outcome.refused("no file matches", "day=2026-11-20")
    assert outcome.found == [] and not cluster.jobs()


def test_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    outcome = submitted(tmp_path / "here")
    outcome.refused("slurm.conf")
    assert outcome.found == []


def test_no_munge(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    lines = cluster.conf.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("AuthInfo")]
    conf.write_text("\n".join([*kept, f"AuthInfo=socket={tmp_path}/nobody"]))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    outcome = submitted(tmp_path / "here")
    outcome.refused("unge")
    assert outcome.found == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = submitted(tmp_path / "here", "--run-dir", tmp_path / "file" / "run")
    outcome.refused("Not a directory", "--run-dir")


def test_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").touch()
    submitted(tmp_path / "here", "--run-dir", tmp_path / "used").refused("is not empty", "--run-dir")


def test_no_cluster_is_named(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, "submit", PROGRAMS / "small_torch.py")
    outcome.refused("'local'", "--on", "slurm")


def test_lead_is_for_batch_scripts(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, "lead", PROGRAMS / "small_torch.py")
    outcome.err = unstamped(outcome.err)  # what a leader says goes into its log
    outcome.refused("no SLURM job", "elasticflow submit")
    assert outcome.found == []


def test_a_job_that_nobody_knows(tmp_path: Path) -> None:
    Outcome(tmp_path, "status", "4711").refused("4711", "neither the folder of a run")


def test_a_program_that_fails_at_import(submit: Callable[..., SlurmRun], tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("import no_such_module\n\ndef model(): ...\ndef forward(x, y): ...\n")
    run = submit(str(program), "--workers", 2)
    code, output = run.wait()
    assert code == 1 and "no_such_module" in output and "Error: " in output, output
    run.leaves_nothing()


@pytest.fixture(scope="module")
def limited() -> Iterator[SlurmCluster]:
    """A cluster whose accounting lets a user submit three jobs at a time."""
    require(accounting=True)
    with SlurmCluster(accounting=True) as cluster:
        cluster.sacctmgr("modify", "user", "root", "set", "MaxSubmitJobs=3")
        yield cluster


def test_an_account_limit(
    limited: SlurmCluster, tmp_path: Path, undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is two jobs; so there is room for one worker, and the run goes on with that."""
    monkeypatch.setenv("SLURM_CONF", str(limited.conf))
    with SlurmRun(limited, tmp_path / "run", "small_torch.py", "--workers", "1..4", shut=["step 20"]) as run:
        run.held_at("step 20")
        status = run.wait_until(lambda s: "AssocMaxSubmitJobLimit" in s.shortage)
        assert status.shortage.startswith("1 of 4: "), status.shortage
        run.open("step 20")
        assert run.digest() == undisturbed
        run.leaves_nothing()
    limited.sacctmgr("modify", "user", "root", "set", "MaxSubmitJobs=1")
    outcome = submitted(tmp_path / "here")
    outcome.refused("AssocMaxSubmitJobLimit")
    assert outcome.found == [] and not limited.jobs()


def test_no_permission_for_the_folder(capfd: pytest.CaptureFixture[str]) -> None:
    """As another user, in a process of its own: root may do anything."""
    with tempfile.TemporaryDirectory() as name:
        home, secret = Path(name), Path(name, "secret")
        home.chmod(0o755)
        secret.mkdir(mode=0o700)
        shutil.copy(PROGRAMS / "small_torch.py", home / "program.py")
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.seteuid(NOBODY)
                run_dir = str(secret / "run")
                code = main(["submit", str(home / "program.py"), "--on", "slurm", "--run-dir", run_dir])
            except BaseException:  # noqa: BLE001  (this process must not go on with the tests)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert_told(capfd.readouterr().err, "secret/run", "Permission denied", "--run-dir")
        assert not list(secret.iterdir())


def test_a_resume_that_is_refused_loses_nothing(submit: Callable[..., SlurmRun], tmp_path: Path) -> None:
    run = submit("small_torch.py", "--workers", 1)
    run.finish()
    before = {path: path.read_bytes() for path in run.path.glob("*.json")}
    config = tmp_path / "other.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "backend": "slurm",
                "slurm": {"leader": {"partition": "cpus"}, "workers": [{"partition": "gpu"}]},
            }
        )
    )
    refused = cli("submit", config, "--resume", "--run-dir", run.path, "--epochs", 5)
    assert refused.returncode == 1 and "invalid partition" in refused.stderr, refused
    assert {path: path.read_bytes() for path in run.path.glob("*.json")} == before


def test_what_is_shipped_need_not_stay(
    submit: Callable[..., SlurmRun], tmp_path: Path, undisturbed: str
) -> None:
    """The program's folder is copied, the environment is unpacked on each node."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("small_torch.py", "gates.py"):
        shutil.copy(PROGRAMS / name, home / name)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/bash\necho unpacked in "$VIRTUAL_ENV"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(python, "bin/python")
    section = {"ship": True, "environment": str(archive), "setup": "export MARKED=1"}
    run = submit(str(home / "small_torch.py"), "--workers", 2, shut=["model"], slurm=section)
    run.held_at("model")
    shutil.rmtree(home)
    run.open("model")
    assert run.digest() == undisturbed
    assert (
        "unpacked in /tmp/elasticflow-0-environment.tar.gz"
        in (run.path / "logs" / "worker-2.log").read_text()
    )


def test_a_run_does_not_go_on_with_settings_that_make_another_model(submit: Callable[..., SlurmRun]) -> None:
    run = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    run.held_at("step 20")
    assert run.stop("step 20").returncode == 0
    before = run.dir.settings.read_bytes(), run.dir.report.read_bytes()
    refused = cli("submit", "--resume", "--run-dir", run.path, "--batch-size", 32)
    assert refused.returncode == 1 and "was made with batch_size 64, now it is 32" in refused.stderr, refused
    assert (run.dir.settings.read_bytes(), run.dir.report.read_bytes()) == before


def test_a_leader_that_waits(submit: Callable[..., SlurmRun], cluster: SlurmCluster) -> None:
    """Its state is told, and it can be stopped, though there is no master to ask."""
    cluster.run("sbatch", "--partition=cpu", "--nodes=3", "--exclusive", "--wrap=sleep 600")
    run = submit("small_torch.py", "--workers", 1)
    run.wait_for_output("waits: ")
    told = cli("status", run.job)
    assert told.returncode == 0 and f"its leader, job {run.job}, waits: " in told.stdout, told
    stopped = cli("stop", run.job)
    assert stopped.returncode == 0 and f"job {run.job} is cancelled; it had not begun" in stopped.stdout, (
        stopped
    )
    assert run.wait()[0] == 1
    run.wait_until_squeue(lambda: len(cluster.jobs()) == 1)
