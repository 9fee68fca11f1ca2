"""Whatever is killed on the cluster, the model is the same, and no container is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from elasticflow.run.folder import remove_tree
from tests.e2e.conftest import cli
from tests.e2e.on_clusters import CARRIED, settled

from .conftest import YarnRun, ready

Submit = Callable[..., YarnRun]


@pytest.fixture
def run(submit: Submit) -> YarnRun:
    """Two workers, held at step 20; a checkpoint is there."""
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 8, shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    return run


def ends_well(run: YarnRun, undisturbed: str, attempts: int = 1) -> None:
    run.open("step 20")
    assert run.digest() == undisturbed
    assert run.attempts == attempts
    run.leaves_nothing()


def test_a_worker_is_killed(run: YarnRun, undisturbed: str) -> None:
    run.kill("worker-1")
    status = run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    assert status.num_faults == 1, status.faults
    ends_well(run, undisturbed)


def test_a_workers_whole_container_is_killed(run: YarnRun, undisturbed: str) -> None:
    for pid in run.cluster.pids(run.container_of(run.pid("worker-1")).id):
        os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])
    ends_well(run, undisturbed)


def test_a_server_is_killed(run: YarnRun, undisturbed: str) -> None:
    run.kill("server-0")
    run.wait_until(lambda s: s.generation == 2 and not s.regrouping)
    ends_well(run, undisturbed)


def test_workers_carry_the_servers(submit: Submit, undisturbed: str) -> None:
    """There are no containers but the master's and the workers'; one is killed that carries a place."""
    run = submit("small_torch.py", *CARRIED, shut=["step 1", "step 20"])
    run.wait_until(settled)
    run.open("step 1")  # a checkpoint that is written while places move is given up
    run.wait_until_containers(3)
    run.held_at("step 20")
    run.wait_until(lambda s: s.checkpoint_step)
    run.kill("worker-1")
    run.wait_until(lambda s: settled(s) and "worker-1" not in {w.name for w in s.workers})
    run.kill("master")
    run.wait_until(lambda s: s.master.incarnation == 2 and settled(s))
    ends_well(run, undisturbed)


def test_another_run_begins_where_its_folder_was_removed(submit: Submit, undisturbed: str) -> None:
    """The application under way gives up, and takes nothing of the other's along."""
    first = submit("small_torch.py", "--workers", 1, shut=["step 20"])
    first.held_at("step 20")
    application = first.application
    remove_tree(first.dir.path)
    second = submit("small_torch.py", "--workers", 1)
    first.held_at("step 20")  # the gate is one for all
    assert first.wait()[0] == 1, first.output()
    assert second.application != application and not first.cluster.containers(application)
    first.open("step 20")
    assert second.digest() == undisturbed
    second.leaves_nothing()


def test_the_master_is_killed(run: YarnRun, undisturbed: str) -> None:
    """The next one takes its place in the same container, and adopts the others."""
    run.wait_until_containers(5)  # the ApplicationMaster's, a server's and its standby's, two workers'
    before = run.cluster.containers(run.application)
    run.kill("master")
    status = run.wait_until(lambda s: s.master.incarnation == 2)
    assert sorted(w.name for w in status.workers) == ["worker-1", "worker-2"], status.events
    assert run.cluster.containers(run.application) == before
    ends_well(run, undisturbed)


def test_the_application_masters_java_is_killed(run: YarnRun, undisturbed: str) -> None:
    os.kill(run.java_of_master(), signal.SIGKILL)
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    ends_well(run, undisturbed, attempts=2)


def test_the_application_masters_java_is_killed_as_the_run_begins(submit: Submit, undisturbed: str) -> None:
    """What the specification asks for is there, and the next attempt gets it again."""
    run = submit("small_torch.py", "--workers", 2, shut=["step 20"])
    deadline = time.monotonic() + 60
    while len(found := run.cluster.containers(run.application)) < 4:
        assert time.monotonic() < deadline, run.output()
        time.sleep(0.05)  # YARN tells nobody
    pids = run.cluster.pids(found[0].id)
    os.kill(next(pid for pid in pids if os.readlink(f"/proc/{pid}/exe").endswith("/java")), signal.SIGKILL)
    ends_well(run, undisturbed, attempts=2)


def test_a_node_is_lost_under_a_worker(run: YarnRun, undisturbed: str) -> None:
    """Its containers live on: who is in them leaves, and is not waited for."""
    assert cli("scale", run.application, 3).returncode == 0  # so they are on two nodes: each has two GPUs
    status = run.wait_until(lambda s: len(ready(s)) == 3)
    masters = run.container_of(run.pid("master")).node
    nodes = {run.container_of(worker.pid).node for worker in status.workers}
    node = min(nodes - {masters})
    run.cluster.kill(node)
    run.wait_until(lambda s: any("lost" in fault.text for fault in s.faults))
    run.wait_until(lambda s: len(ready(s)) == 3 and not s.regrouping)
    run.cluster.start_daemon(node)
    ends_well(run, undisturbed)


def test_the_node_of_the_application_master_is_lost(run: YarnRun, undisturbed: str) -> None:
    """The old master lives on for a while: there never are two."""
    node, old = run.container_of(run.pid("master")).node, run.pid("master")
    run.cluster.kill(node)
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{old}"):
        assert time.monotonic() < deadline, "the first master lives on"
        time.sleep(0.1)  # it is nobody's child here
    ends_well(run, undisturbed, attempts=2)
    run.cluster.start_daemon(node)


def test_a_datanode_is_killed(run: YarnRun, undisturbed: str) -> None:
    run.cluster.kill("datanode-0")
    run.open("step 20")
    ends_well_after_all(run, undisturbed)


def test_the_namenode_is_restarted_in_the_middle_of_checkpoints(submit: Submit, undisturbed: str) -> None:
    run = submit("small_torch.py", "--workers", 2, "--checkpoint-every", 2, shut=["step 20"])
    run.held_at("step 20")
    run.cluster.kill("namenode")
    run.open("step 20")
    run.shut("step 30")
    run.held_at("step 30")
    for verb in ("status", "jobs"):
        asked = cli(verb, "small_torch", "--json")
        assert asked.returncode == 75 and "cannot be read" in asked.stdout, asked
    run.cluster.start_daemon("namenode")
    run.open("step 30")
    ends_well_after_all(run, undisturbed)


def test_the_resource_manager_is_restarted(run: YarnRun, undisturbed: str) -> None:
    run.cluster.kill("resourcemanager")
    run.kill("worker-1")
    run.cluster.start_daemon("resourcemanager")
    run.wait_until(lambda s: sorted(ready(s)) == ["worker-2", "worker-3"])  # one that it has granted
    ends_well(run, undisturbed)


def test_killed_as_a_whole(run: YarnRun, submit: Submit, undisturbed: str) -> None:
    run.cluster.kill_applications()
    code, output = run.wait()
    assert code == 1 and "--resume" in output, output
    run.leaves_nothing()
    page, told = cli("status", run.path), cli("status", run.path, "--json")
    assert page.returncode == told.returncode == 0, (page, told)
    assert json.loads(told.stdout)["cluster_end"]["state"] == "KILLED", told
    assert f"{run.application} ended as KILLED" in page.stdout, page
    run.open("step 20")
    assert submit("small_torch.py", "--resume", "--workers", 2).digest() == undisturbed


def ends_well_after_all(run: YarnRun, undisturbed: str) -> None:
    assert run.digest() == undisturbed
    assert run.attempts == 1
    run.leaves_nothing()
