"""One real Kubernetes for all tests that need one, and runs on it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticflow import checkpoint
from elasticflow.checkpoint import commits, load_manifest
from tests.clusters.kubernetes import IMAGE, KubernetesCluster, host_volumes, require
from tests.e2e.conftest import PROGRAMS, TEST_PATIENCE_S, ctrl_c_is_heard
from tests.e2e.on_clusters import WORK, ClusterRun, undisturbed
from tests.e2e.processes import marked, new_mark
from tests.e2e.programs.gates import GATES, MARK

__all__ = ["ctrl_c_is_heard", "undisturbed"]

CONF = Path(__file__).parents[2] / "conf" / "kubernetes"
LEADER = "leader"
"""Of a run's Pods, the one that is no member's."""
SECTION = {
    "image": IMAGE,
    "image_pull_policy": "Never",
    "python": sys.executable,
    "priority_class": "train",
    "server_priority_class": "serve",
    "cpus": "100m",
    "server_cpus": "100m",
    "server_memory": "",
    "leader_cpus": "100m",
    "leader_memory": "",
    "grace_s": 5,
    "poll_s": 0.5,
    "patience_s": 5,
    "unreachable_s": 5,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kubernetes)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TEST_PATIENCE_S))


class KubernetesRun(ClusterRun):
    """A run on the cluster; the process is ``submit --attach``, which ends with the run's exit code.

    verb: another command, such as ``lead``, by hand on this machine, which Pods reach.
    """

    def __init__(
        self,
        kubernetes: KubernetesCluster,
        path: Path,
        program: str,
        *options: object,
        section: Any = None,
        settings: Any = None,
        verb: Sequence[str] = ("submit", "--attach"),
        **more: Any,
    ) -> None:
        self.cluster, self._verb = kubernetes, verb[0]
        config = path.with_suffix(".yaml")
        exports = "\n".join(f"export {name}={shlex.quote(os.environ[name])}" for name in (MARK, GATES))
        volumes = {"volumes": host_volumes()}
        whole = {
            **WORK,
            **(settings or {}),
            "kubernetes": {**SECTION, **volumes, "setup": exports, **(section or {})},
        }
        config.write_text(yaml.safe_dump(whole))
        words = ["--config", str(config), str(PROGRAMS / program), "--run-dir", str(path), *map(str, options)]
        rest = words[:2] if self._verb == "operate" else ["--on", "kubernetes", *words]
        super().__init__(path, program, command=[*verb, *rest], **more)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Those of the run's members, by their names, and its leader's."""
        labelled = [(pod["metadata"].get("labels", {}), pod) for pod in self.cluster.pods()]
        ours = [(labels, pod) for labels, pod in labelled if "app.kubernetes.io/managed-by" in labels]
        return {labels.get("elasticflow/member", LEADER): pod for labels, pod in ours}

    def pid(self, name: str) -> int:
        """Here; in its Pod it has another number."""
        told = super().pid(name)
        if name == "master" and self._verb == "lead":
            return told
        title = "python" if name == "master" else f"ef-{name}"
        for pid in marked(self.environment):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
                if len(numbers) > 1 and int(numbers[-1]) == told and lines[0].split()[1].startswith(title):
                    return pid
        raise AssertionError(f"{name} is process {told} in its Pod, and is not here")

    def digest(self) -> str:
        """``submit --attach`` prints it."""
        if self._verb == "submit":
            return super().digest()
        self.finish()
        storage = self.dir.storage()
        return checkpoint.digest(storage, load_manifest(storage, commits(storage)[-1]))

    def job(self) -> dict[str, Any]:
        """Its leader's."""
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "job", self.job_id, "-o", "json"))
        return found

    def is_told(self, state: str) -> None:
        """Its Job ends so."""

        def is_so() -> bool:
            conditions = self.job()["status"].get("conditions", [])
            return any(each["type"] == state and each["status"] == "True" for each in conditions)

        self.cluster.wait_until(is_so, f"the leader's Job is {state}")

    def uids(self) -> dict[str, str]:
        """Of its members' Pods."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items() if name != LEADER}

    def lose(self, node: str) -> set[str]:
        """Loses a node with what this run has there; returns whom."""
        lost = {name for name, pod in self.pods().items() if pod["spec"]["nodeName"] == node}
        self.cluster.lose(node)
        return lost

    def leaves_nothing(self) -> None:
        """But for the leader's Pod, which has ended, and tells how."""
        self.cluster.wait_until(lambda: not self.pods().keys() - {LEADER}, "no Pod of the run is left")


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[KubernetesCluster]:
    require()
    with KubernetesCluster() as started:
        for name in ("account", "nodes"):
            started.kubectl("apply", "-f", str(CONF / f"{name}.yaml"))
        yield started


@pytest.fixture
def on_cluster(kubernetes: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is started has this cluster, and this home."""
    gates = tmp_path / "gates"
    gates.mkdir()
    values = {"KUBECONFIG": kubernetes.kubeconfig, GATES: gates, "XDG_STATE_HOME": tmp_path / "state"}
    for name, value in {**values, **new_mark()}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def submit(
    kubernetes: KubernetesCluster, on_cluster: None, tmp_path: Path
) -> Iterator[Callable[..., KubernetesRun]]:
    """Begins runs; in the end no process and no Pod is left of them."""
    kubernetes.clear()
    with ExitStack() as runs:

        def make(
            program: str = "small_torch.py", *options: object, name: str = "run", **more: Any
        ) -> KubernetesRun:
            return runs.enter_context(KubernetesRun(kubernetes, tmp_path / name, program, *options, **more))

        yield make
    kubernetes.clear()


@pytest.fixture
def take(kubernetes: KubernetesCluster) -> Callable[..., None]:
    """Pods of somebody else's, each with a GPU."""

    def others(name: str, priority_class: str, **labels: str) -> None:
        kubernetes.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "priorityClassName": priority_class,
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "containers": [
                        {
                            "name": "other",
                            "image": IMAGE,
                            "imagePullPolicy": "Never",
                            "command": ["/pause"],
                            "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        }
                    ],
                },
            }
        )

    return others
