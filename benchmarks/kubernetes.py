"""Kubernetes: submit to first step, idle GPU to its use, both beside bare Pods; and what 2,000 Pods cost."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import yaml

from benchmarks.cases import SMALL
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import PROGRAM, wait_until
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import KubernetesConfig
from elasticflow_kubernetes.mirror import WatchedPods
from elasticflow_kubernetes.objects import name_of
from tests.clusters.kubernetes import GPUS_PER_NODE, IMAGE, NODES, KubernetesCluster, host_volumes

ROUNDS = 5
COMMAND = "python -m benchmarks kubernetes"
CONF = Path(__file__).parents[1] / "conf" / "kubernetes"
GPUS = GPUS_PER_NODE * len(NODES)
MANY, CHANGES = 2000, 2
"""Pods, and how often each changes."""
SETTINGS: dict[str, Any] = {
    "image": IMAGE,
    "image_pull_policy": "Never",
    "python": sys.executable,
    "cpus": "100m",
    "server_cpus": "100m",
    "server_memory": "",
    "leader_cpus": "100m",
    "leader_memory": "",
    "volumes": host_volumes(),
}


class _Namespace:
    """With nothing in it, and what is timed there."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._count = 0
        exports = "\n".join(
            f"export {name}={shlex.quote(text)}" for name, text in SMALL.environment().items()
        )
        section = {**SETTINGS, "setup": exports}
        whole = {"backend": "kubernetes", "epochs": 100_000, "kubernetes": section}
        (folder / "kubernetes.yaml").write_text(yaml.safe_dump(whole))

    def bare(self, *, free: str = "") -> float:
        """Seconds until a Pod that only imports PyTorch has done so, from when it was asked for, or from the
        deletion of the Pod ``free``, which had the last GPU."""
        self._count += 1
        output = self.folder / f"bare-{self._count}"
        code = "import torch, time; print(time.time(), flush=True)"
        since = time.time()
        self._pod(f"bare-{self._count}", f"exec {sys.executable} -c '{code}' > {output}")
        if free:
            self.cluster.wait_until(lambda: "Pending" in self._phases(), "it waits")
            since = time.time()
            self._end(free)
        while not (output.exists() and output.read_text().strip()):
            time.sleep(0.01)
        return float(output.read_text()) - since

    def first_step(self) -> float:
        """Seconds from ``elasticflow submit`` until the first step is done."""
        since = time.time()
        status = wait_until(self._submit("1"), lambda s: s.first_step_s is not None)
        self.end_all()
        return float(status.started_at + (status.first_step_s or 0.0) - since)

    def next_worker(self) -> float:
        """Seconds from the deletion of the Pod that had the last GPU until a second worker takes part."""
        blockers = self.block(GPUS - 1)
        run = self._submit("1..2")
        wait_until(run, lambda s: s.first_step_s is not None and "Insufficient" in s.shortage)
        since = time.time()
        self._end(blockers[0])
        status = wait_until(run, lambda s: [w.state for w in s.workers] == ["ready"] * 2)
        joined = next(e.time_s for e in status.events if e.text.startswith("worker-2 has joined"))
        self.end_all()
        return float(status.started_at + joined - since)

    def block(self, gpus: int) -> list[str]:
        """Pods of somebody else's, each with a GPU."""
        self._count += 1
        names = [f"other-{self._count}-{number}" for number in range(gpus)]
        for name in names:
            self._pod(name, "exec sleep 1000")
        self.cluster.wait_until(lambda: self._phases().count("Running") == gpus, "they run")
        return names

    def end_all(self) -> None:
        self.cluster.clear()

    def _end(self, name: str) -> None:
        self.cluster.kubectl("delete", "pod", name, "--wait=false", "--grace-period=1")

    def _phases(self) -> list[str]:
        return [pod["status"]["phase"] for pod in self.cluster.pods()]

    def _pod(self, name: str, command: str) -> None:
        mounts = [{"name": path[1:], "mountPath": path} for path in SETTINGS["volumes"]]
        container = {
            "name": "bare",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", command],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "volumeMounts": mounts,
        }
        volumes = [{"name": path[1:], "hostPath": {"path": path}} for path in SETTINGS["volumes"]]
        spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "volumes": volumes}
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {**spec, "containers": [container]},
            }
        )

    def _submit(self, workers: str) -> RunDir:
        self._count += 1
        run = RunDir(self.folder / f"run-{self._count}")
        options = [str(self.folder / "kubernetes.yaml"), str(PROGRAM), "--workers", workers]
        command = [sys.executable, "-m", "elasticflow.cli", "submit", *options, "--run-dir", str(run.path)]
        subprocess.run(command, check=True, capture_output=True)
        return run


def _many(cluster: KubernetesCluster) -> tuple[float, float]:
    """CPU time of a process that watches that many Pods, for each change; and to look at all once."""
    client, changed = KubernetesClient(KubernetesConfig()), Event()
    meta = {"generateName": "many-", "labels": {"app.kubernetes.io/managed-by": "elasticflow"}}
    container = {"name": "none", "image": IMAGE, "command": ["/bin/sh", "-c", "x" * 2000]}
    spec = {"schedulerName": "nobody", "automountServiceAccountToken": False, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: name_of(client.create(pod)), range(MANY)))
        watched = WatchedPods(client, changed.set)
        assert len(watched.now()) == MANY
        command = [sys.executable, "-m", "benchmarks.kubernetes", *names]
        before_s = time.process_time()
        with subprocess.Popen(command) as changing:
            while changing.poll() is None:
                changed.wait(1.0)
                changed.clear()
            if changing.returncode:
                raise RunError("the Pods could not be changed")
        per_change_s = (time.process_time() - before_s) / (MANY * CHANGES)
    before_s = time.process_time()
    watched.now()
    watched.close()
    return per_change_s, time.process_time() - before_s


def _change(names: list[str]) -> None:
    """In a process of its own: changes all of them, each so many times."""
    client = KubernetesClient(KubernetesConfig())

    def change(name: str) -> None:
        for number in range(CHANGES):
            body = {"metadata": {"annotations": {"changed": str(number)}}}
            client._core.patch_namespaced_pod(name, client.namespace, body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, names))


def run() -> Iterator[Figure]:
    """Medians of interleaved rounds on a cluster of this machine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(KubernetesCluster())
        os.environ.update({"KUBECONFIG": str(cluster.kubeconfig), "XDG_STATE_HOME": str(folder)})
        for name in ("account", "nodes"):
            cluster.kubectl("apply", "-f", str(CONF / f"{name}.yaml"))
        site = _Namespace(cluster, folder)
        firsts, nexts = [], []
        for _ in range(ROUNDS):
            bare = site.bare()
            site.end_all()
            firsts.append(site.first_step() - bare)
            blockers = site.block(GPUS)
            bare = site.bare(free=blockers[0])
            site.end_all()
            nexts.append(site.next_worker() - bare)
        name = "submit to first step, beyond a bare Pod"
        yield figure(name, median(firsts), "s", 2.0, COMMAND, "reference: 2 s")
        name = "idle GPU to its first slice, beyond a bare Pod"
        yield figure(name, median(nexts), "s", 1.0, COMMAND, "reference: 1 s")
        per_change_s, look_s = _many(cluster)
        yield figure(f"CPU for a change of {MANY} Pods", 1e3 * per_change_s, "ms", 1.0, COMMAND)
        yield figure(f"CPU to look at {MANY} Pods", 1e3 * look_s, "ms", 100.0, COMMAND)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _change(sys.argv[1:])
