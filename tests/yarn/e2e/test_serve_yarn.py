"""A service that shares a queue of a real YARN among runs: promises, nodes that go, and its own deaths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elasticflow.run.folder import RunDir
from tests.clusters.hadoop import HadoopCluster
from tests.e2e.conftest import Run
from tests.e2e.processes import end_all
from tests.e2e.programs.gates import MARK
from tests.e2e.serving import OPTIONS, Served

from .conftest import SMALL


class ServedOnYarn(Served):
    """See Served."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, 4, slice_s=0.05)
        self.url = url
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        env = {**kept, "SLICE_S": "0.05", MARK: self.environment[MARK]}  # containers inherit nothing
        settings = {"cluster": "yarn", "look_s": 0.5, "yarn": {**SMALL, "env": env}}
        with self.settings.open("a") as file:
            yaml.safe_dump(settings, file)

    def run_of(self, name: str) -> RunDir:
        return RunDir(f"{self.url}/{name}")


@pytest.fixture
def served(hadoop: HadoopCluster, tmp_path: Path, url: str) -> Iterator[ServedOnYarn]:
    hadoop.reset()
    service = ServedOnYarn(tmp_path, url)
    try:
        service.start()
        yield service
    finally:
        if service.process is not None:
            service.process.kill()
            service.process.wait()
        hadoop.reset()
        end_all(service.environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Run(tmp_path_factory.mktemp("alone") / "run", "small_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


def test_two_runs_under_deadlines_and_the_service_is_killed_in_the_middle(
    served: ServedOnYarn, alone: str
) -> None:
    first = served.submit("first", "--deadline", "+30m")
    served.wait_until(lambda tasks: tasks[first].promised_at)
    second = served.submit("second", "--deadline", "+30m")
    tasks = served.wait_until(lambda tasks: tasks[second].held and tasks[first].step > 3)
    assert sum(task.held for task in tasks.values()) <= 4
    served.kill()
    served.start()
    after = served.tasks()
    assert {name: after[name].promised_at for name in after} == {
        name: tasks[name].promised_at for name in after
    }
    tasks = served.finish(first, second)
    assert all(task.promised_at for task in tasks.values()), tasks
    assert served.digest("first") == served.digest("second") == alone
