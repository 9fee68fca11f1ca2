"""A service that shares a real SLURM cluster among runs: promises, nodes that go, and deaths of the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PATIENCE_S, Run
from tests.e2e.processes import end_all
from tests.e2e.serving import OPTIONS, Served

from .conftest import SMALL

SECTION = {"leader": {"partition": "cpu"}, "workers": [{"partition": "spare"}], **SMALL, "poll_s": 0.2}
"""Two nodes with two GPUs each."""
SETTINGS = yaml.safe_dump(
    {"cluster": "slurm", "nodes": 4, "look_s": 0.5, "slurm": SECTION}, default_flow_style=True
)


class ServedOnSlurm(Served):
    """See Served."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        more = "".join(
            f"{name}: {yaml.safe_dump(value, default_flow_style=True, width=10000)}".rstrip(".\n") + "\n"
            for name, value in {"cluster": "slurm", "look_s": 0.5, "slurm": SECTION}.items()
        )
        super().__init__(folder, 4, more, slice_s=0.05)
        self.cluster = cluster

    def worker_jobs(self) -> int:
        """Of all runs: those that SLURM has not ended."""
        text = self.cluster.run("squeue", "-h", "-o", "%k", "-t", "PENDING,RUNNING,COMPLETING")
        return sum(" worker-" in line for line in text.splitlines())


@pytest.fixture
def served(cluster: SlurmCluster, tmp_path: Path) -> Iterator[ServedOnSlurm]:
    cluster.reset()
    service = ServedOnSlurm(cluster, tmp_path)
    try:
        service.start()
        yield service
    finally:
        if service.process is not None:
            service.process.kill()
            service.process.wait()
        cluster.cancel_all()
        cluster.wait_until_idle()
        end_all(service.environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Run(tmp_path_factory.mktemp("alone") / "run", "small_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


def until(what: Callable[[], object], story: Callable[[], object]) -> None:
    """Until SLURM says so; it tells nobody by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, story()
        time.sleep(0.1)


def test_two_runs_under_deadlines_and_the_service_is_killed_in_the_middle(
    served: ServedOnSlurm, alone: str
) -> None:
    first = served.submit("first", "--deadline", "+30m")
    served.wait_until(lambda tasks: tasks[first].promised_at)
    second = served.submit("second", "--deadline", "+30m")
    tasks = served.wait_until(lambda tasks: tasks[second].step > 3 and tasks[first].step > 3)
    assert sum(task.held for task in tasks.values()) <= 4
    served.kill()
    assert served.worker_jobs() <= 4
    served.start()
    after = served.tasks()
    assert {name: after[name].promised_at for name in after} == {
        name: tasks[name].promised_at for name in after
    }
    tasks = served.finish(first, second)
    assert all(task.promised_at for task in tasks.values()), tasks
    assert served.digest("first") == served.digest("second") == alone
    served.cluster.wait_until_idle()
