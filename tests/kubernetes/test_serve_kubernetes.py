"""A service that shares a real Kubernetes among runs: promises, nodes that go, and its own deaths."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elasticflow.run.folder import UNKNOWN, RunDir
from tests.clusters.kubernetes import NODES, KubernetesCluster, host_volumes
from tests.e2e.programs.gates import MARK
from tests.e2e.serving import LONG, Served, digest_alone, two_under_deadlines

from .conftest import SECTION


class ServedOnKubernetes(Served):
    """See Served."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        super().__init__(folder, 4, slice_s=0.05)
        self.cluster = cluster
        exports = [f"export {name}={shlex.quote(self.environment[name])}" for name in (MARK, "SLICE_S")]
        section = {**SECTION, "volumes": host_volumes(), "setup": "\n".join(exports)}
        settings = {"cluster": "kubernetes", "look_s": 0.5, "kubernetes": section}
        with self.settings.open("a") as file:
            yaml.safe_dump(settings, file)

    def check_places(self) -> None:
        assert self.workers() <= 4

    def clear(self) -> None:
        self.cluster.clear()

    def workers(self) -> int:
        """Of all runs: Pods that are not over."""
        there = [pod for pod in self.cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")]
        return sum(pod["metadata"]["labels"].get("elasticflow/role") == "worker" for pod in there)


@pytest.fixture
def served(kubernetes: KubernetesCluster, on_cluster: None, tmp_path: Path) -> Iterator[ServedOnKubernetes]:
    kubernetes.clear()
    with ServedOnKubernetes(kubernetes, tmp_path) as service:
        yield service


def test_two_runs_under_deadlines_and_the_service_is_killed_in_the_middle(
    served: ServedOnKubernetes, tmp_path: Path
) -> None:
    two_under_deadlines(served, digest_alone(tmp_path, *LONG), *LONG)


def test_a_cordoned_node_takes_its_promises_along_and_a_paused_run_leaves_nothing(
    served: ServedOnKubernetes, tmp_path: Path
) -> None:
    """With no node no run has a leader even; it comes back with the nodes. Then the leader is lost."""
    name = served.submit("run", "--best-effort")
    served.wait_until(lambda tasks: tasks[name].workers == 4 and tasks[name].step > 3)
    served.cluster.kubectl("cordon", NODES[0])
    try:
        served.wait_until(lambda tasks: tasks[name].held <= 2)
        served.cluster.wait_until(lambda: served.workers() <= 2, "two workers have left")
        served.cluster.kubectl("cordon", NODES[1])
        tasks = served.wait_until(lambda tasks: not tasks[name].held)
        assert served.workers() == 0 and 3 < tasks[name].step < 75
        served.cluster.wait_until(lambda: not served.workers(), "nothing of it is left")
    finally:
        for node in NODES:
            served.cluster.kubectl("uncordon", node)
    step = tasks[name].step
    served.wait_until(lambda tasks: tasks[name].step > step + 1)
    host = RunDir(served.runs / "run").host()
    assert host is not None and host.id != UNKNOWN
    served.cluster.kubectl("delete", "job", host.id, "--wait=false")

    def begun_anew() -> bool:
        now = RunDir(served.runs / "run").host()
        return now is not None and now.id not in (host.id, UNKNOWN)

    served.cluster.wait_until(begun_anew, "another leader has been submitted")
    served.finish(name)
    assert served.digest("run") == digest_alone(tmp_path / "alone")
