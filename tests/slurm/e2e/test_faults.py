"""Whatever is killed on the cluster, the model is the same, and no job is left."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.run.folder import EXIT_CODES
from tests.clusters.slurm import GPU_NODES, SlurmCluster
from tests.e2e.conftest import cli
from tests.e2e.on_clusters import CARRIED, settled
from tests.e2e.processes import CLI, remove_under_way

from .conftest import SlurmRun, ready

Submit = Callable[..., SlurmRun]


@pytest.fixture
def run(submit: Submit) -> SlurmRun:
    """Two workers, held at step 20; a checkpoint is there."""
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    return run


def ends_well(run: SlurmRun, undisturbed: str) -> None:
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_a_worker_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("worker-1")
    status = run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    assert status.num_faults == 1, status.faults
    ends_well(run, undisturbed)


def test_a_place_whose_process_never_comes(submit: Submit, undisturbed: str) -> None:
    hangs = {"setup": "case $SLURM_JOB_NAME in *-worker-2) sleep 600;; esac"}
    run = submit("small_torch.py", "--workers", 2, slurm=hangs, settings={"start_s": 15}, shut=["step 20"])
    status = run.wait_until(lambda s: sorted(ready(s)) == ["worker-1", "worker-3"])
    (fault,) = status.faults
    assert fault.text == "did not come within 15 s of getting its place, and is given up"
    ends_well(run, undisturbed)


def test_a_slurmd_is_killed_under_a_worker(run: SlurmRun, undisturbed: str) -> None:
    node = run.cluster.run("squeue", "-h", "-j", run.jobs()["worker-1"], "-o", "%N").strip()
    run.cluster.kill_slurmd(node)
    status = run.wait_until(lambda s: "worker-1" not in [w.name for w in s.workers])
    assert any(f"lost its node {node}" in fault.text for fault in status.faults), status.faults
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.cluster.start_slurmd(node)
    ends_well(run, undisturbed)


def test_a_servers_step_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("server-0")
    run.wait_until(lambda s: s.generation == 2 and not s.regrouping)
    ends_well(run, undisturbed)


def test_workers_carry_the_servers(submit: Submit, undisturbed: str) -> None:
    """The leader is the master alone. A worker is killed that carries a place, then the leader requeued."""
    run = submit("small_torch.py", *CARRIED, shut=["step 1", "step 20"])
    run.wait_until(settled)
    run.open("step 1")  # a checkpoint that is written while places move is given up
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    assert f"{run.job}+1" not in run.cluster.jobs(), "there is no component for servers"
    run.kill("worker-1")
    run.wait_until(lambda s: settled(s) and "worker-1" not in {w.name for w in s.workers})
    workers = run.jobs()
    run.cluster.run("scontrol", "requeue", str(run.job))
    run.wait_until(lambda s: s.master.incarnation == 2 and settled(s))
    assert run.jobs() == workers, "the workers were to be adopted"
    ends_well(run, undisturbed)


def test_the_master_is_killed(run: SlurmRun, undisturbed: str) -> None:
    run.kill("master")
    status = run.wait_until(lambda s: s.master.incarnation == 2)
    assert len(ready(status)) == 2, status
    ends_well(run, undisturbed)


def test_the_masters_supervisor_is_killed_with_it(run: SlurmRun, undisturbed: str) -> None:
    master = run.pid("master")
    supervisor = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (supervisor, master):
        os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda s: s.master.incarnation == 2)
    ends_well(run, undisturbed)


def test_the_leader_is_requeued(run: SlurmRun, undisturbed: str) -> None:
    workers = run.jobs()
    run.cluster.run("scontrol", "requeue", str(run.job))
    status = run.wait_until(lambda s: s.master.incarnation == 2 and not s.regrouping)
    assert {w.name for w in status.workers} == set(workers), status.workers
    assert run.jobs() == workers, "the workers were to be adopted"
    ends_well(run, undisturbed)
    assert [fault.text for fault in run.report().faults if fault.role == "master"] == [
        f"was in job {run.job}, which SLURM has requeued; master 2 goes on"
    ]


def test_a_leader_that_is_requeued_after_its_run_was_stopped(run: SlurmRun) -> None:
    """SLURM does so where it had lost sight of its node. It only says again how the run ended."""
    assert run.stop(held_at="step 20").returncode == 0
    code, output = run.wait()
    assert code == EXIT_CODES["stopped"], output
    run.wait_until_squeue(lambda: not run.cluster.jobs())
    before, report = run.dir.report.read_bytes(), run.report()
    log = run.dir.logs / "leader.log"

    def says_so() -> bool:
        if not run.cluster.jobs():  # again: SLURM forgets who is requeued while it still completes somewhere
            run.cluster.run("scontrol", "requeue", str(run.job), check=False)
            run.cluster.run(
                "scontrol", "update", f"JobId={run.job}", "StartTime=now", check=False
            )  # not later
        return "has ended before: stopped: " in log.read_text()

    run.wait_until_squeue(says_so)
    run.leaves_nothing()
    assert run.dir.report.read_bytes() == before and report.state == "stopped"
    assert not run.dir.address.exists()


def test_another_run_begins_where_its_folder_was_removed(submit: Submit, undisturbed: str) -> None:
    """The job under way gives up, and takes nothing of the other's along."""
    first = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    first.held_at("step 20")
    jobs = {str(first.job), *first.jobs().values()}
    remove_under_way(first.path)
    second = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    second.held_at("step 20")
    assert first.wait()[0] == 1, first.output()
    second.wait_until_squeue(lambda: not jobs & set(second.cluster.jobs()))
    ends_well(second, undisturbed)


def test_the_leaders_node_is_down(run: SlurmRun, undisturbed: str) -> None:
    workers = run.jobs()
    node = run.cluster.run("squeue", "-h", "-j", str(run.job), "-o", "%i %N").split()[1]
    run.cluster.set_down(node)
    run.wait_until(lambda s: s.master.incarnation == 2 and not s.regrouping)
    assert run.jobs() == workers, "the workers were to be adopted"
    run.cluster.resume(node)
    ends_well(run, undisturbed)


def test_a_servers_node_is_down(run: SlurmRun, undisturbed: str) -> None:
    nodes = run.cluster.run("squeue", "-h", "-j", str(run.job), "-o", "%N").split()
    run.cluster.set_down(nodes[1])
    run.wait_until(lambda s: s.master.incarnation == 2 and not s.regrouping)
    run.cluster.resume(nodes[1])
    ends_well(run, undisturbed)


def test_the_controller_is_away_for_a_while(run: SlurmRun, undisturbed: str) -> None:
    node = run.cluster.run("squeue", "-h", "-j", run.jobs()["worker-1"], "-o", "%N").strip()
    run.cluster.save(run.jobs()["worker-1"])
    run.cluster.kill_controller()
    run.kill("worker-1")
    status = run.wait_until(lambda s: "does not answer" in s.shortage)
    assert len(ready(status)) == 1
    for verb in ("status", "report"):
        assert cli(verb, run.path).returncode == 0, "the master can be asked"
    asked = cli("status", "no-such-name", "--json")
    assert asked.returncode == 75 and json.loads(asked.stdout)["state"] == "unknown", asked
    run.cluster.start_controller()
    asked = cli("status", "no-such-name", "--json")
    assert asked.returncode == 1 and json.loads(asked.stdout)["state"] == "absent", asked
    run.wait_until(lambda s: len(ready(s)) == 2)
    ends_well(run, undisturbed)
    run.cluster.set_down(node)  # SLURM has not heard that the killed worker's job is over, and waits for it
    run.cluster.resume(node)


def test_cancelled_as_a_whole(run: SlurmRun) -> None:
    run.cluster.run("scancel", str(run.job))
    run.leaves_nothing()
    code, output = run.wait()
    assert code == 1 and "--resume" in output, output
    told = json.loads(cli("status", run.path, "--json").stdout)
    assert (told["state"], told["cluster_end"]["state"]) == ("killed", "CANCELLED"), told


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
    page, told = cli("status", run.path), cli("status", run.path, "--json")
    assert page.returncode == told.returncode == 0, (page, told)
    end = json.loads(told.stdout)["cluster_end"]
    assert end["state"] == "FAILED" and "by SIGKILL, exit code 137" in end["text"], end
    assert f"job {run.job} ended as FAILED" in page.stdout and end["text"] in cli("report", run.path).stdout
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
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    assert run.job == int(second)
    assert run.jobs() == workers, "the workers were to be adopted"
    log = (run.path / "logs" / "leader.log").read_text()
    assert "ended: master of term 1 is superseded by that of term 2" in log, log
    ends_well(run, undisturbed)


def test_nobody_resumes_what_is_under_way(run: SlurmRun, undisturbed: str) -> None:
    told = cli("submit", "--resume", "--on", "slurm", "--run-dir", run.path)
    assert told.returncode == 1 and "is under way, in job" in told.stderr, told
    ends_well(run, undisturbed)


def test_a_node_is_drained(submit: Submit, undisturbed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers leave, others come elsewhere, and nothing counts as a fault."""
    monkeypatch.setenv("SLICE_S", "0.1")  # so that there are steps to make meanwhile
    run = submit("small_torch.py", "--workers", 2, shut=["step 10"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 10")
    nodes = run.cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%N", "-j", ",".join(run.jobs().values()))
    for node in (drained := set(nodes.split())):
        run.cluster.drain(node)
    run.open("step 10")
    for node in drained:
        run.cluster.wait_until_state(node, "drained")
        run.cluster.resume(node)
    assert run.digest() == undisturbed
    report = run.report()
    assert sum("is being drained" in event.text for event in report.events) == 2, report.events
    assert not report.num_faults, report.faults
    run.leaves_nothing()


def test_a_folder_that_workers_nodes_do_not_see(
    submit: Submit, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """One is left out; where none sees it, a few places are enough to know."""
    first, *others = GPU_NODES
    cluster.restart_slurmd(first, lacks=tmp_path)
    try:
        run = submit("small_torch.py", "--workers", 2, name="some", settings={"epochs": 1})
        assert run.wait()[0] == 0
        shut = [event.text for event in run.report().events if "is left out" in event.text]
        (told,) = shut
        assert f"node {first} is left out of new jobs for an hour: node {first} cannot write into" in told
        for node in others:
            cluster.restart_slurmd(node, lacks=tmp_path)
        run = submit("small_torch.py", "--workers", 2, name="none", slurm={"launch_failures": 2})
        code, output = run.wait()
        assert code == 1 and "nothing could be started in 2 places" in output, output
        assert "cannot write into the run's folder; choose a --run-dir that all nodes see" in output
    finally:
        for node in GPU_NODES:
            cluster.restart_slurmd(node)
