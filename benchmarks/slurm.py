"""SLURM: submit to first step, idle GPU to its use, both beside bare jobs; and calls of squeue."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import yaml

from benchmarks.cases import SMALL
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import wait_until
from elasticflow.run.folder import RunDir
from tests.clusters.slurm import SlurmCluster
from tests.pure.slurm_world import polls_a_minute

ROUNDS = 5
COMMAND = "python -m benchmarks slurm"
PROGRAM = Path(__file__).parent / "programs" / "mlp.py"
BARE = f"{sys.executable} -c 'import torch; import time; print(time.time(), flush=True)'"
SETTINGS = {
    "backend": "slurm",
    "epochs": 100_000,
    "slurm": {
        "leader": {"partition": "cpu"},
        "leader_mem": "500M",
        "server_mem": "500M",
        "workers": [{"partition": "gpu"}],
        "mem": "1G",
    },
}


class _Site:
    """A cluster with nothing on it, and what is timed there."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._count = 0
        (folder / "slurm.yaml").write_text(yaml.safe_dump(SETTINGS))

    def bare(self, *, free: str = "") -> float:
        """Seconds until a job that only imports PyTorch has done so, from its submission, or from the end of
        the job ``free``, which had the last GPU."""
        self._count += 1
        output = self.folder / f"bare-{self._count}"
        since = time.time()
        options = ["--partition=gpu", "--gres=gpu:1", "--mem=1G", f"--output={output}"]
        self.cluster.run("sbatch", *options, f"--wrap=exec {BARE}")
        if free:
            self._wait_for_pending()
            since = time.time()
            self.cluster.run("scancel", free)
        while not (output.exists() and output.read_text().strip()):
            time.sleep(0.01)
        return float(output.read_text()) - since

    def first_step(self) -> float:
        """Seconds from ``elasticflow submit`` until the first step is done."""
        since = time.time()
        run = self._submit("1")
        status = wait_until(run, lambda s: s.first_step_s is not None)
        self.end_all()
        return float(status.started_at + status.first_step_s - since)

    def next_worker(self) -> float:
        """Seconds from the end of the job that had the last GPU until a second worker takes part."""
        blockers = self.block(7)
        run = self._submit("1..2")
        wait_until(run, lambda s: s.first_step_s is not None and "no idle GPU" in s.shortage)
        since = time.time()
        self.cluster.run("scancel", blockers[0])
        status = wait_until(run, lambda s: [w.state for w in s.workers] == ["ready"] * 2)
        joined = next(e.time_s for e in status.events if e.text.startswith("worker-2 has joined"))
        self.end_all()
        return status.started_at + joined - since

    def block(self, gpus: int) -> list[str]:
        """Jobs of somebody else's, each with a GPU."""
        options = ["--parsable", "--partition=gpu", "--gres=gpu:1", "--mem=100M", "--output=/dev/null"]
        ids = [self.cluster.run("sbatch", *options, "--wrap=sleep 1000").strip() for _ in range(gpus)]
        while sum(state == "RUNNING" for state in self.cluster.jobs().values()) < gpus:
            time.sleep(0.05)
        return ids

    def end_all(self) -> None:
        self.cluster.cancel_all()
        self.cluster.wait_until_idle()

    def _wait_for_pending(self) -> None:
        while "PENDING" not in self.cluster.jobs().values():
            time.sleep(0.05)

    def _submit(self, workers: str) -> RunDir:
        self._count += 1
        run = RunDir(self.folder / f"run-{self._count}")
        options = [
            str(self.folder / "slurm.yaml"),
            str(PROGRAM),
            "--workers",
            workers,
            "--run-dir",
            str(run.path),
        ]
        command = [sys.executable, "-m", "elasticflow.cli", "submit", *options]
        subprocess.run(command, check=True, capture_output=True)
        return run


def run() -> Iterator[Figure]:
    """Medians of interleaved rounds on a cluster of this machine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(SlurmCluster())
        os.environ.update({name: cluster.environment[name] for name in ("SLURM_CONF", "PATH")})
        os.environ.update({"XDG_STATE_HOME": str(folder), **SMALL.environment()})
        site = _Site(cluster, folder)
        firsts, nexts = [], []
        for _ in range(ROUNDS):
            bare = site.bare()
            firsts.append(site.first_step() - bare)
            blockers = site.block(8)
            bare = site.bare(free=blockers[0])
            site.end_all()
            nexts.append(site.next_worker() - bare)
        yield figure(
            "submit to first step, beyond a bare job", median(firsts), "s", 2.0, COMMAND, "reference: 2 s"
        )
        name = "idle GPU to its first slice, beyond a bare job"
        yield figure(name, median(nexts), "s", 3.0, COMMAND, "reference: 3 s")
    one = polls_a_minute(1)
    yield figure("squeue calls a minute, 1 worker", one, "", one, COMMAND)
    yield figure("squeue calls a minute, 100 workers", polls_a_minute(100), "", one, COMMAND)
