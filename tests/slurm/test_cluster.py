"""The cluster that the tests run on is a real one: it allocates, preempts, requeues, fails and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters import slurm
from tests.clusters.processes import ClusterError, is_alive
from tests.clusters.slurm import GPU_NODES, NODES, SlurmCluster

pytestmark = pytest.mark.slurm

TRAPPING = "trap 'echo told >> {told}; exit 0' TERM; echo started >> {told}; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[SlurmCluster]:
    slurm.require()
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    yield shared_cluster
    shared_cluster.reset()


def submit(cluster: SlurmCluster, *options: str, script: str = "sleep 1000") -> str:
    path = cluster.folder / "shared" / "script"
    path.write_text(f"#!/bin/bash\n{script}\n")
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", *options, str(path))


def state_of(cluster: SlurmCluster, job: str) -> str:
    return cluster.jobs(ended=True)[job]


def wait_for(is_so: Callable[[], bool], timeout_s: float = 15.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_gets_the_gpus_that_it_asked_for(cluster: SlurmCluster) -> None:
    said = cluster.run("srun", "--partition=gpu", "--gpus=2", "--nodes=1", "printenv", "CUDA_VISIBLE_DEVICES")
    assert said == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in cluster.run("srun", "env")


def test_an_urgent_job_takes_the_nodes_of_another_which_is_told_before(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    step = f'srun bash -c "{TRAPPING.format(told=told)}"'
    preempted = submit(
        cluster, "--partition=gpu", "--nodes=4", "--gpus-per-node=2", "--no-requeue", script=step
    )
    wait_for(lambda: told.exists() and told.read_text().count("started") == 4)
    urgent = submit(cluster, "--partition=urgent", "--gpus=1")
    wait_for(lambda: told.read_text().count("told") == 4)
    wait_for(lambda: state_of(cluster, urgent) == "RUNNING")
    assert state_of(cluster, preempted) in ("PREEMPTED", "COMPLETED", "FAILED")


def test_components_of_a_heterogeneous_job_start_together(cluster: SlurmCluster) -> None:
    job = submit(cluster, "--ntasks=1", ":", "--ntasks=2", "--nodes=2")
    wait_for(lambda: state_of(cluster, f"{job}+0") == state_of(cluster, f"{job}+1") == "RUNNING")


def test_a_node_that_is_set_down_fails_its_job_and_comes_back(cluster: SlurmCluster) -> None:
    job = submit(cluster, "--nodelist=g1", "--partition=gpu", "--no-requeue")
    wait_for(lambda: state_of(cluster, job) == "RUNNING")
    cluster.set_down("g1")
    wait_for(lambda: state_of(cluster, job) == "NODE_FAIL")
    assert cluster.nodes()["g1"].startswith("down")
    cluster.resume("g1")
    wait_for(lambda: cluster.nodes()["g1"] == "idle")


def test_a_job_outlives_its_nodes_daemon(cluster: SlurmCluster) -> None:
    job = submit(cluster, "--nodelist=c2")
    wait_for(lambda: state_of(cluster, job) == "RUNNING")
    cluster.kill_slurmd("c2")
    cluster.start_slurmd("c2")
    wait_for(lambda: not cluster.nodes()["c2"].endswith("*"))
    assert state_of(cluster, job) == "RUNNING"


def test_a_job_outlives_the_controller(cluster: SlurmCluster) -> None:
    job = submit(cluster, "--nodelist=c2")
    wait_for(lambda: state_of(cluster, job) == "RUNNING")
    cluster.stop_controller()
    cluster.start_controller()
    assert state_of(cluster, job) == "RUNNING"


def test_reset_leaves_nothing_of_jobs_that_resist(cluster: SlurmCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        f"trap '' TERM; (trap '' TERM; setsid sleep 1000 & echo $! >> {pids}); echo $$ >> {pids}; sleep 1000"
    )
    for node in ("c1", "c2"):
        submit(cluster, f"--nodelist={node}", script=script)
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    cluster.kill_slurmd("c1")
    cluster.set_down("c3")
    cluster.reset()
    assert cluster.jobs() == {}
    assert cluster.nodes() == dict.fromkeys(NODES, "idle")
    assert not [pid for pid in pids.read_text().split() if is_alive(int(pid))]


def test_nodes_have_gpus_that_are_counted(cluster: SlurmCluster) -> None:
    job = submit(cluster, "--partition=gpu", f"--gpus={2 * len(GPU_NODES)}")
    wait_for(lambda: state_of(cluster, job) == "RUNNING")
    more = submit(cluster, "--partition=gpu", "--gpus=1")
    assert state_of(cluster, more) == "PENDING"


def test_with_accounting_limits_are_enforced() -> None:
    slurm.require(accounting=True)
    with SlurmCluster(accounting=True) as cluster:
        cluster.sacctmgr("modify", "user", "root", "set", "MaxSubmitJobs=1")
        submit(cluster)
        with pytest.raises(ClusterError, match="AssocMaxSubmitJobLimit"):
            submit(cluster)


def test_accounting_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="accounting=True"):
        SlurmCluster(tmp_path).sacctmgr("show", "cluster")


def test_a_cluster_that_runs_is_taken_over_by_its_folder(cluster: SlurmCluster) -> None:
    assert SlurmCluster(cluster.folder).nodes() == cluster.nodes()
    with pytest.raises(ClusterError, match="runs in .* already"):
        SlurmCluster(cluster.folder).start()


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SEARCH_PATH", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "slurmctld, slurmd, sbatch" in slurm.skip_reason()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("ELASTICFLOW_REQUIRE_CLUSTERS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        slurm.require()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        slurm.require()
