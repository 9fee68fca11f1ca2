"""A run that was submitted: its leader's Pod may go, and comes again; its Job tells how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.kubernetes import NODES, KubernetesCluster
from tests.e2e.conftest import CLI, PROGRAMS
from tests.e2e.on_clusters import ready

from .conftest import CONF, LEADER, KubernetesRun
from .test_faults import Submit, ends_well, run

__all__ = ["run"]

FAILING = """\
import torch

import elasticflow as ef


def data():
    return {"x": torch.ones(64, 1)}


def model():
    return {"net": torch.nn.Linear(1, 1), "optimizer": ef.SGD(lr=0.1)}


def learning_rate(step, epoch):
    raise KeyError("not this one")


def forward(x, params):
    return params["net"](x)
"""


def said(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What our own command says."""
    words = [*CLI, *map(str, command)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def comes_again(run: KubernetesRun, before: dict[str, Any]) -> None:
    """The leader is in another Pod, and has taken over those of before."""
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    assert run.uids() == before


def test_its_pod_is_deleted(run: KubernetesRun, undisturbed: str) -> None:
    before = run.uids()
    run.cluster.kubectl("delete", "pod", run.pods()[LEADER]["metadata"]["name"], "--wait=false")
    comes_again(run, before)
    ends_well(run, undisturbed)


def test_all_its_processes_are_killed(run: KubernetesRun, undisturbed: str) -> None:
    before, master = run.uids(), run.pid("master")
    supervisor = int(Path(f"/proc/{master}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (supervisor, master):
        os.kill(pid, signal.SIGKILL)
    comes_again(run, before)
    ends_well(run, undisturbed)


def test_its_node_is_lost(run: KubernetesRun, undisturbed: str) -> None:
    node = run.pods()[LEADER]["spec"]["nodeName"]
    run.lose(node)
    try:
        run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
        run.open("step 20")
        assert run.digest() == undisturbed
    finally:
        run.cluster.start_kubelet(node)
    run.leaves_nothing()


def test_its_node_is_drained(run: KubernetesRun, undisturbed: str) -> None:
    node = run.pods()[LEADER]["spec"]["nodeName"]
    run.cluster.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    assert run.pods()[LEADER]["spec"]["nodeName"] != node
    ends_well(run, undisturbed)


def test_its_job_is_deleted_and_the_run_goes_on_later(
    run: KubernetesRun, submit: Submit, undisturbed: str
) -> None:
    run.cluster.kubectl("delete", "job", run.job_id)
    code, output = run.wait()
    assert code and "it was deleted" in output and "--resume" in output, output
    run.open("step 20")
    run.leaves_nothing()
    again = submit("small_torch.py", "--workers", 2, "--resume")
    assert again.digest() == undisturbed


def test_a_run_that_fails_is_tried_once(submit: Submit, tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    run = submit(str(program), "--workers", 1)
    code, output = run.wait()
    assert code == 1 and "not this one" in output, output
    run.is_told("Failed")
    run.leaves_nothing()
    assert run.job()["status"]["failed"] == 1


def test_it_is_stopped_before_it_begins(submit: Submit, kubernetes: KubernetesCluster) -> None:
    for node in NODES:
        kubernetes.kubectl("cordon", node)
    run = submit("small_torch.py")
    name = run.job_id
    kubernetes.wait_until(lambda: "0 of 2 nodes" in said("status", name).stdout, "it waits, and says why")
    stopped = said("stop", name)
    assert stopped.returncode == 0 and "is deleted; it had not begun" in stopped.stdout, stopped
    assert run.wait()[0]
    assert not kubernetes.kubectl("get", "jobs", "-o", "name").split()


def test_it_is_found_from_another_home(run: KubernetesRun, tmp_path: Path, undisturbed: str) -> None:
    listed = said("jobs", XDG_STATE_HOME=str(tmp_path / "elsewhere"))
    assert run.job_id in listed.stdout and str(run.path) in listed.stdout, listed
    status = said("status", run.job_id, XDG_STATE_HOME=str(tmp_path / "elsewhere"))
    assert "running" in status.stdout, status
    ends_well(run, undisturbed)


def test_led_by_hand(submit: Callable[..., KubernetesRun], undisturbed: str) -> None:
    """By a process on a node; killed, its master is followed by another."""
    run = submit("small_torch.py", "--workers", 2, verb=["lead"], shut=["step 20"])
    run.wait_until(lambda s: len(ready(s)) == 2)
    run.kill("master")
    run.wait_until(lambda s: s.master.incarnation == 2 and len(ready(s)) == 2)
    run.open("step 20")
    assert run.digest() == undisturbed
    run.leaves_nothing()


def test_what_is_never_taken_is_refused_at_once(submit: Submit) -> None:
    run = submit("small_torch.py", section={"priority_class": "nobody-has-this"})
    code, output = run.wait()
    assert code == 1 and "takes no worker such as this" in output and "nobody-has-this" in output
    assert not run.path.exists()


def test_where_no_pod_sees_its_folder_nothing_begins(submit: Submit, tmp_path: Path) -> None:
    run = submit("small_torch.py", section={"volumes": {"/shared": "host:/shared"}})
    code, output = run.wait()
    assert code == 1 and "is in none of kubernetes.volumes (/shared)" in output
    assert not run.path.exists()


@pytest.mark.usefixtures("on_cluster")
def test_what_is_shown_is_what_kubernetes_takes(kubernetes: KubernetesCluster, tmp_path: Path) -> None:
    config = CONF.with_suffix(".yaml")
    run_dir = "/shared/runs/first"
    shown = said("submit", "--dry-run", config, PROGRAMS / "small_torch.py", "--run-dir", run_dir)
    kubernetes.kubectl("create", "--dry-run=server", "-f", "-", stdin=shown.stdout)
    for path in CONF.glob("*.yaml"):
        kubernetes.kubectl("apply", "--dry-run=server", "-f", str(path))
