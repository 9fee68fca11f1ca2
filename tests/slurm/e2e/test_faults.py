"""Whatever is killed on the cluster, the model is the same, and no job is left."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import cli
from tests.e2e.processes import CLI

from .conftest import SlurmRun, ready

Submit = Callable[..., SlurmRun]


@pytest.fixture
def run(submit: Submit) -> SlurmRun:
    """Two workers, held at step 20; a checkpoint is there."""
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s["checkpoint_step"])
    return run


def ends_well(run: SlurmRun, undisturbed: str) -> None:
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_a_worker_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("worker-1")
    status = run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    assert status["num_faults"] == 1, status["faults"]
    ends_well(run, undisturbed)


def test_a_place_whose_process_never_comes(submit: Submit, undisturbed: str) -> None:
    hangs = {"setup": "case $SLURM_JOB_NAME in *-worker-2) sleep 600;; esac"}
    run = submit("small_torch.py", "--workers", 2, slurm=hangs, settings={"start_s": 15}, shut=["step 20"])
    status = run.wait_until(lambda s: sorted(ready(s)) == ["worker-1", "worker-3"])
    (fault,) = status["faults"]
    assert fault["text"] == "did not come within 15 s of getting its place, and is given up"
    ends_well(run, undisturbed)


def test_a_slurmd_is_killed_under_a_worker(run: SlurmRun, undisturbed: str) -> None:
    node = run.cluster.run("squeue", "-h", "-j", run.jobs()["worker-1"], "-o", "%N").strip()
    run.cluster.kill_slurmd(node)
    status = run.wait_until(lambda s: "worker-1" not in [w["name"] for w in s["workers"]])
    assert any(f"lost its node {node}" in fault["text"] for fault in status["faults"]), status["faults"]
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.cluster.start_slurmd(node)
    ends_well(run, undisturbed)


def test_a_servers_step_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("server-0")
    run.wait_until(lambda s: s["generation"] == 2 and not s["regrouping"])
    ends_well(run, undisturbed)


def test_the_master_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("master")
    status = run.wait_until(lambda s: s["master"]["incarnation"] == 2)
    assert len(ready(status)) == 2, status
    ends_well(run, undisturbed)


def test_the_masters_supervisor_is_killed_with_it(run: SlurmRun, undisturbed: str) -> None:
    master = run.pid("master")
    supervisor = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (supervisor, master):
        os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda s: s["master"]["incarnation"] == 2)
    ends_well(run, undisturbed)


def test_the_leader_is_requeued(run: SlurmRun, undisturbed: str) -> None:
    workers = run.jobs()
    run.cluster.run("scontrol", "requeue", str(run.job))
    status = run.wait_until(lambda s: s["master"]["incarnation"] == 2 and not s["regrouping"])
    assert {w["name"] for w in status["workers"]} == set(workers), status["workers"]
    assert run.jobs() == workers, "the workers were to be adopted"
    ends_well(run, undisturbed)


def test_the_leaders_node_is_down(run: SlurmRun, undisturbed: str) -> None:
    workers = run.jobs()
    node = run.cluster.run("squeue", "-h", "-j", str(run.job), "-o", "%i %N").split()[1]
    run.cluster.set_down(node)
    run.wait_until(lambda s: s["master"]["incarnation"] == 2 and not s["regrouping"])
    assert run.jobs() == workers, "the workers were to be adopted"
    run.cluster.resume(node)
    ends_well(run, undisturbed)


def test_a_servers_node_is_down(run: SlurmRun, undisturbed: str) -> None:
    nodes = run.cluster.run("squeue", "-h", "-j", str(run.job), "-o", "%N").split()
    run.cluster.set_down(nodes[1])
    run.wait_until(lambda s: s["master"]["incarnation"] == 2 and not s["regrouping"])
    run.cluster.resume(nodes[1])
    ends_well(run, undisturbed)


def test_the_controller_is_away_for_a_while(run: SlurmRun, undisturbed: str) -> None:
    node = run.cluster.run("squeue", "-h", "-j", run.jobs()["worker-1"], "-o", "%N").strip()
    run.cluster.save(run.jobs()["worker-1"])
    run.cluster.kill_controller()
    run.kill("worker-1")
    status = run.wait_until(lambda s: "does not answer" in s["shortage"])
    assert len(ready(status)) == 1
    run.cluster.start_controller()
    run.wait_until(lambda s: len(ready(s)) == 2)
    ends_well(run, undisturbed)
    run.cluster.set_down(node)  # SLURM has not heard that the killed worker's job is over, and waits for it
    run.cluster.resume(node)


def test_cancelled_as_a_whole(run: SlurmRun) -> None:
    run.cluster.run("scancel", str(run.job))
    run.leaves_nothing()
    code, output = run.wait()
    assert code == 1 and "--resume" in output, output


def test_the_leaders_script_is_killed(run: SlurmRun, submit: Submit, undisturbed: str) -> None:
    """SLURM does not requeue that: the workers end by themselves, and one who comes later goes on."""
    master = run.pid("master")
    supervisor = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    script = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(script, signal.SIGKILL)
    run.leaves_nothing()
    run.open("step 20")
    code, output = run.wait()
    assert code == 1, output
    resumed = submit("small_torch.py", "--resume", "--workers", 2)
    assert resumed.digest() == undisturbed
    run.leaves_nothing()


def test_a_second_leader_supersedes_the_first(run: SlurmRun, undisturbed: str) -> None:
    """As where SLURM has lost sight of a node, whose processes live on: there never are two masters."""
    first, workers = run.job, run.jobs()
    lead = shlex.join(["exec", *CLI, "lead", "--run-dir", str(run.path)])
    options = ["--partition=cpu", "--mem=500M", "--output=/dev/null", "--parsable"]
    second = run.cluster.run("sbatch", *options, f"--wrap={lead}").strip()
    run.wait_until_squeue(lambda: f"{first}+0" not in run.cluster.jobs())
    run.wait_until(lambda s: s["master"]["incarnation"] == 2 and len(ready(s)) == 2)
    assert run.job == int(second)
    assert run.jobs() == workers, "the workers were to be adopted"
    log = (run.path / "logs" / "leader.log").read_text()
    assert "ended: master of term 1 is superseded by that of term 2" in log, log
    ends_well(run, undisturbed)


def test_nobody_resumes_what_is_under_way(run: SlurmRun, undisturbed: str) -> None:
    told = cli("submit", "--resume", "--on", "slurm", "--run-dir", run.path)
    assert told.returncode == 1 and "is under way, in job" in told.stderr, told
    ends_well(run, undisturbed)
