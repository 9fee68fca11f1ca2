"""Clusters whose eight GPUs a service shares, what others take of them, and a folder's runs on them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml

from elasticflow import checkpoint
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import Report
from elasticflow.service import talk
from tests.clusters.kubernetes import IMAGE, KubernetesCluster, host_volumes
from tests.clusters.slurm import SlurmCluster

CLI = [sys.executable, "-m", "elasticflow.cli"]
PROGRAM = Path(__file__).parent / "programs" / "waiting.py"
CONF = Path(__file__).parents[1] / "conf" / "kubernetes"
GPUS = 8
SHARE = {"nodes": 4, "workers_per_node": 2, "measure_s": 2.0, "poll_s": 0.1, "look_s": 1.0}
Self = TypeVar("Self", bound="Site")


def wait(what: Callable[[], object]) -> None:
    """Until it is so; nobody tells."""
    while not what():
        time.sleep(0.05)


class Site(ABC):
    """A cluster. name: as settings call it; title: as people do. section: of its settings."""

    name: str
    title: str
    section: dict[str, Any]
    cluster: SlurmCluster | KubernetesCluster

    def __enter__(self: Self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__(kind, error, trace)

    @abstractmethod
    def take(self, count: int) -> list[str]:
        """GPUs for somebody else, who has them by the time that this returns."""

    @abstractmethod
    def give(self, taken: str) -> None:
        """One of these back."""


class OnSlurm(Site):
    """Four nodes of two GPUs."""

    name, title = "slurm", "SLURM"
    cluster: SlurmCluster

    def __init__(self) -> None:
        self.cluster = SlurmCluster()
        self.section = {
            "leader": {"partition": "cpu"},
            "workers": [{"partition": "gpu"}],
            "leader_mem": "500M",
            "server_mem": "500M",
            "mem": "1G",
            "poll_s": 0.5,
        }

    def __enter__(self) -> OnSlurm:
        super().__enter__()
        os.environ.update({name: self.cluster.environment[name] for name in ("SLURM_CONF", "PATH")})
        return self

    def take(self, count: int) -> list[str]:
        command = ["sbatch", "--parsable", "-p", "gpu", "--gres=gpu:1", "--mem=100M", "-o", "/dev/null"]
        command += ["--wrap", "sleep 3600"]
        jobs = [subprocess.check_output(command, text=True).strip() for _ in range(count)]
        running = ["squeue", "-h", "-t", "RUNNING", "-o", "%i", "-j", ",".join(jobs)]
        wait(lambda: len(subprocess.check_output(running, text=True).split()) == count)
        return jobs

    def give(self, taken: str) -> None:
        subprocess.run(["scancel", taken], check=True)


class OnKubernetes(Site):
    """Two nodes of four GPUs."""

    name, title = "kubernetes", "Kubernetes"
    cluster: KubernetesCluster

    def __init__(self) -> None:
        self.cluster = KubernetesCluster(gpus_per_node=GPUS // 2)
        names = ("cpus", "server_cpus", "leader_cpus")
        self.section = {
            "image": IMAGE,
            "image_pull_policy": "Never",
            "python": sys.executable,
            **dict.fromkeys(names, "100m"),
            "server_memory": "",
            "leader_memory": "",
            "volumes": host_volumes(),
            "poll_s": 0.5,
            "grace_s": 5,
        }
        self._taken = 0

    def __enter__(self) -> OnKubernetes:
        super().__enter__()
        os.environ["KUBECONFIG"] = str(self.cluster.kubeconfig)
        for name in ("account", "nodes"):
            self.cluster.kubectl("apply", "-f", str(CONF / f"{name}.yaml"))
        return self

    def take(self, count: int) -> list[str]:
        self._taken += count
        names = [f"other-{number}" for number in range(self._taken - count, self._taken)]
        for name in names:
            self.cluster.apply(_other(name))
        self.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/{n}" for n in names))
        return names

    def give(self, taken: str) -> None:
        self.cluster.kubectl("delete", "pod", taken, "--grace-period=1")


def _other(name: str) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "other", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/pause"]}
    spec = {"automountServiceAccountToken": False, "containers": [{**container, "resources": limits}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class ClusterRuns:
    """Runs in a folder, by their names, and a service for them.

    work: their settings. bench: what ``programs/waiting.py`` is to do.
    """

    def __init__(self, site: Site, folder: Path, work: dict[str, object], bench: dict[str, object]) -> None:
        self.folder, self.service = folder, folder / "service"
        os.environ["BENCH"] = json.dumps({**bench, "lock": str(folder / "lock")})
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        setup = f"export BENCH={shlex.quote(os.environ['BENCH'])}"
        section = {site.name: {**site.section, "setup": setup}}
        job = {"backend": site.name, **work, **section}
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        service = {"folder": str(self.service), "cluster": site.name, **SHARE, **section}
        (folder / "service.yaml").write_text(yaml.safe_dump(service))

    def submit(self, name: str, *options: object, epochs: int) -> str:
        """Hands it in, to the cluster or a service; how it is called there."""
        command = [*CLI, "submit", self.folder / "job.yaml", PROGRAM, "--epochs", epochs, *options]
        command += ["--run-dir", self.folder / name]
        return subprocess.check_output(list(map(str, command)), text=True, stderr=subprocess.PIPE).strip()

    def report(self, name: str) -> Report:
        """Once it is over."""
        run = RunDir(self.folder / name)
        wait(run.report.exists)
        report = run.read_report()
        assert report is not None and report.state == "finished", report
        return report

    def end_s(self, name: str) -> float:
        """Since 1970."""
        report = self.report(name)
        return report.started_at + report.elapsed_s

    def digest(self, name: str) -> str:
        storage = RunDir(self.folder / name).storage()
        manifest, _ = checkpoint.newest_intact(storage)
        assert manifest is not None
        return checkpoint.digest(storage, manifest)

    def begin_service(self) -> subprocess.Popen[bytes]:
        """One that answers."""
        with (self.folder / "service.log").open("wb") as log:
            process = subprocess.Popen(
                [*CLI, "serve", str(self.folder / "service.yaml")], stdout=log, stderr=log
            )
        wait(self._answers)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        """A service that knows how fast the program is."""
        process = self.begin_service()
        self.submit("measured", "--service", self.service, "--best-effort", epochs=4)
        self.report("measured")
        wait(lambda: all(task.state for task in talk.ask(self.service, talk.ListTasks()).tasks))
        return process

    def _answers(self) -> bool:
        with suppress(RunError):
            return bool(talk.ask(self.service, talk.ListTasks()).capacity)
        return False
