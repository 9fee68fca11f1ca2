"""Two jobs that each want more than half of a SLURM: one after the other, and elastic under a service.

ElasticDL's published experiment: two jobs of 175 of 320 CPUs, 1300 s one after the other, 1100 s elastic.
Here they want 5 of 8 GPUs; the second is handed in when 300/1300 of the rigid makespan are over. A step takes
as long as its records say, without computing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from benchmarks.figures import Figure, figure
from elasticflow import checkpoint
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import Report
from elasticflow.service import talk
from tests.clusters.slurm import SlurmCluster

COMMAND = "python -m benchmarks two_jobs"
CLI = [sys.executable, "-m", "elasticflow.cli"]
PROGRAM = Path(__file__).parent / "programs" / "waiting.py"
BATCH, EPOCH_STEPS, EPOCHS, STEP_S = 64, 10, 15, 1.6
"""Records of a step, steps of an epoch, epochs of a job, and seconds of a step on one worker."""
WANTED, GPUS = 5, 8
SECOND = 300 / 1300
"""Of the rigid makespan: when the second is handed in."""
PUBLISHED = 1100 / 1300
SECTION = {
    "leader": {"partition": "cpu"},
    "workers": [{"partition": "gpu"}],
    "leader_mem": "500M",
    "server_mem": "500M",
    "mem": "1G",
    "poll_s": 0.5,
}
WORK = {"batch_size": BATCH, "slices": 32, "checkpoint_every": "5s"}
SERVICE = {
    "cluster": "slurm",
    "nodes": 4,
    "workers_per_node": 2,
    "measure_s": 2.0,
    "poll_s": 0.1,
    "look_s": 1.0,
    "slurm": SECTION,
}


def wait(what: Callable[[], object]) -> None:
    """Until it is so; nobody tells."""
    while not what():
        time.sleep(0.05)


class SlurmRuns:
    """Runs in a folder, by their names, and a service for them. work: their settings."""

    def __init__(self, folder: Path, work: dict[str, object]) -> None:
        self.folder, self.service = folder, folder / "service"
        (folder / "job.yaml").write_text(yaml.safe_dump({"backend": "slurm", **work, "slurm": SECTION}))
        (folder / "service.yaml").write_text(yaml.safe_dump({"folder": str(self.service), **SERVICE}))

    def submit(self, name: str, *options: object, epochs: int = EPOCHS) -> str:
        """Hands it in, to SLURM or a service; how it is called there."""
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


def run() -> Iterator[Figure]:
    """Figures, in the order of the module's docstring."""
    with tempfile.TemporaryDirectory() as name, SlurmCluster() as cluster:
        folder = Path(name)
        bench = {"record_s": STEP_S / BATCH, "records": BATCH * EPOCH_STEPS, "slowness": 1}
        os.environ["BENCH"] = json.dumps({**bench, "lock": str(folder / "lock")})
        os.environ.update({name: cluster.environment[name] for name in ("SLURM_CONF", "PATH")})
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        runs = SlurmRuns(folder, WORK)
        began_s = time.time()
        for job in ("rigid-1", "rigid-2"):
            runs.submit(job, "--workers", f"{WANTED}..{WANTED}")
            runs.report(job)
        rigid_s = runs.end_s("rigid-2") - began_s
        service = runs.serve()
        began_s = time.time()
        runs.submit("elastic-1", "--service", runs.service, "--deadline", "+1h")
        time.sleep(max(0.0, began_s + SECOND * rigid_s - time.time()))
        handed_s = time.time()
        runs.submit("elastic-2", "--service", runs.service, "--deadline", "+1h")
        elastic_s = max(runs.end_s("elastic-1"), runs.end_s("elastic-2")) - began_s
        second = runs.report("elastic-2")
        service.kill()
        service.wait()
        digests = {runs.digest(job) for job in ("rigid-1", "rigid-2", "elastic-1", "elastic-2")}
        load = f"load {os.getloadavg()[0]:.0f}; digests equal: {len(digests) == 1}"
        yield figure("two jobs, rigid one after the other", rigid_s, "s", rigid_s, COMMAND, load)
        yield figure(f"two jobs, elastic (published {PUBLISHED:.3f})", elastic_s, "s", rigid_s, COMMAND, load)
        if second.first_step_s is not None:
            first_s = second.started_at + second.first_step_s - handed_s
            yield figure("the second one's first step after its hand-in", first_s, "s", 5.0, COMMAND, load)
