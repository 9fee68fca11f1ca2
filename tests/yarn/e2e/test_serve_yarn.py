"""A service that shares a queue of a real YARN among runs: promises, nodes that go, and its own deaths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from elasticflow.run.folder import RunDir
from tests.clusters.hadoop import HadoopCluster
from tests.e2e.programs.gates import MARK
from tests.e2e.serving import LONG, Served, digest_alone, two_under_deadlines

from .conftest import SMALL


class ServedOnYarn(Served):
    """See Served."""

    def __init__(self, hadoop: HadoopCluster, folder: Path, url: str) -> None:
        super().__init__(folder, 4, slice_s=0.05)
        self.hadoop, self.url = hadoop, url
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        env = {**kept, "SLICE_S": "0.05", MARK: self.environment[MARK]}  # containers inherit nothing
        settings = {"cluster": "yarn", "look_s": 0.5, "yarn": {**SMALL, "env": env}}
        with self.settings.open("a") as file:
            yaml.safe_dump(settings, file)

    def clear(self) -> None:
        self.hadoop.reset()

    def run_of(self, name: str) -> RunDir:
        return RunDir(f"{self.url}/{name}")


@pytest.fixture
def served(hadoop: HadoopCluster, tmp_path: Path, url: str) -> Iterator[ServedOnYarn]:
    hadoop.reset()
    with ServedOnYarn(hadoop, tmp_path, url) as service:
        yield service


def test_two_runs_under_deadlines_and_the_service_is_killed_in_the_middle(
    served: ServedOnYarn, tmp_path: Path
) -> None:
    two_under_deadlines(served, digest_alone(tmp_path, *LONG), *LONG)
