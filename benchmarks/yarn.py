"""YARN: submit to first step, and a free GPU to its use, both beside bare Skein applications."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cases import SMALL
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import wait_until
from elasticflow.run.folder import RunDir
from tests.clusters.hadoop import HadoopCluster

ROUNDS = 5
COMMAND = "python -m benchmarks yarn"
PROGRAM = Path(__file__).parent / "programs" / "mlp.py"
BARE = f"exec {sys.executable} -c 'import torch; import time; print(time.time(), flush=True)'"
WORKER = {"memory": "1 GiB", "vcores": 1, "gpus": 1}
GPUS = 6
"""Of the cluster."""
QUEUE = "train"
SETTINGS: dict[str, Any] = {
    "backend": "yarn",
    "epochs": 100_000,
    "yarn": {
        "queue": QUEUE,
        "python": sys.executable,
        "memory": "1 GiB",
        "server_memory": "512 MiB",
        "env": SMALL.environment(),
    },
}


class _Site:
    """A cluster with nothing on it, and what is timed there."""

    def __init__(self, cluster: HadoopCluster, folder: Path, skein: Any) -> None:
        """skein: a client of Skein's, for what is not timed."""
        self.cluster, self.folder, self._skein = cluster, folder, skein
        self._count = 0
        (folder / "yarn.yaml").write_text(yaml.safe_dump(SETTINGS))

    def bare(self, *, free: Callable[[], None] | None = None) -> float:
        """Seconds until an application whose one container only imports PyTorch has done so, from its
        submission, or from ``free``, which ends the container that had the last GPU."""
        self._count += 1
        output, submitted = self.folder / f"bare-{self._count}", self.folder / f"bare-{self._count}.yaml"
        service = {"instances": 1, "resources": WORKER, "script": f"{BARE} > {output}"}
        submitted.write_text(yaml.safe_dump({"queue": QUEUE, "services": {"worker": service}}))
        since = time.time()
        command = [sys.executable, "-m", "skein.cli", "application", "submit", str(submitted)]
        told = subprocess.run(command, check=True, capture_output=True, text=True)
        if free:
            self._until_containers(told.stdout.split()[-1], "REQUESTED", 1)
            since = time.time()
            free()
        while not (output.exists() and output.read_text().strip()):
            time.sleep(0.01)
        self.end_all()
        return float(output.read_text()) - since

    def first_step(self) -> float:
        """Seconds from ``elasticflow submit`` until the first step is done."""
        since = time.time()
        run = self._submit("1")
        status = wait_until(run, lambda s: s.first_step_s is not None)
        self.end_all()
        return float(status.started_at + status.first_step_s - since)

    def next_worker(self) -> float:
        """Seconds from the end of the container that had the last GPU until a second worker takes part."""
        run, free = self.fill("1..2")
        wait_until(run, lambda s: "waits since" in s.shortage)
        since = time.time()
        free()
        status = wait_until(run, lambda s: [w.state for w in s.workers] == ["ready"] * 2)
        joined = next(e.time_s for e in status.events if e.text.startswith("worker-2 has joined"))
        self.end_all()
        return status.started_at + joined - since

    def fill(self, workers: str) -> tuple[RunDir, Callable[[], None]]:
        """A run that trains with one worker, and somebody else's application that has all other GPUs; what is
        returned ends one container of the latter."""
        sleep = {"instances": GPUS - 1, "resources": WORKER, "script": "sleep 1000", "allow_failures": True}
        id = self._skein.submit({"queue": QUEUE, "services": {"sleep": sleep}})
        self._until_containers(id, "RUNNING", GPUS - 1)
        run = self._submit(workers)
        wait_until(run, lambda s: s.first_step_s is not None)
        others = self._skein.connect(id)
        return run, lambda: others.kill_container("sleep_0")

    def end_all(self) -> None:
        self.cluster.kill_applications()

    def _until_containers(self, application: str, state: str, count: int) -> None:
        client = self._skein.connect(application)
        while len(client.get_containers(states=[state])) < count:
            time.sleep(0.05)

    def _submit(self, workers: str) -> RunDir:
        self._count += 1
        run = RunDir(f"{self.cluster.hdfs_url}/user/{self.cluster.user}/benchmark/run-{self._count}")
        options = ["--workers", workers, "--run-dir", str(run.path)]
        command = [sys.executable, "-m", "elasticflow.cli", "submit", str(self.folder / "yarn.yaml")]
        subprocess.run([*command, str(PROGRAM), *options], check=True, capture_output=True)
        return run


def run() -> Iterator[Figure]:
    """Medians of interleaved rounds on a cluster of this machine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(HadoopCluster())
        names = ("PATH", "JAVA_HOME", "HADOOP_CONF_DIR", "HADOOP_USER_NAME")
        os.environ.update({name: cluster.environment[name] for name in names})
        os.environ["SKEIN_CONFIG"] = str(folder / "skein")  # where nobody has left a driver running
        import skein  # it reads that once

        site = _Site(cluster, folder, stack.enter_context(skein.Client()))
        firsts, nexts = [], []
        for _ in range(ROUNDS):
            bare = site.bare()
            firsts.append(site.first_step() - bare)
            bare = site.bare(free=site.fill("1")[1])
            nexts.append(site.next_worker() - bare)
        name = "submit to first step, beyond a bare application"
        yield figure(name, median(firsts), "s", 2.0, COMMAND, "reference: 2 s")
        name = "free GPU to its first slice, beyond a bare application"
        yield figure(name, median(nexts), "s", 2.0, COMMAND, "reference: 2 s")
