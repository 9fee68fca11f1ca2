"""Runs that are submitted to the cluster, and what is done to them and to the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PROGRAMS, TEST_PATIENCE_S, ctrl_c_is_heard
from tests.e2e.on_clusters import WORK, ClusterRun, ready, undisturbed

__all__ = ["WORK", "ctrl_c_is_heard", "ready", "undisturbed"]

SMALL = {"leader_mem": "500M", "server_mem": "500M", "mem": "1G", "poll_s": 0.5, "patience_s": 5}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slurm)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TEST_PATIENCE_S))


class SlurmRun(ClusterRun):
    """A run on the cluster; the process is ``submit --attach``, which ends with the run's exit code."""

    def __init__(
        self,
        cluster: SlurmCluster,
        path: Path,
        program: str,
        *options: object,
        slurm: Any = None,
        settings: Any = None,
        **more: Any,
    ) -> None:
        self.cluster = cluster
        section = {
            "leader": {"partition": "cpu"},
            "workers": [{"partition": "gpu"}],
            **SMALL,
            **(slurm or {}),
        }
        self.config = path.with_suffix(".yaml")
        whole = {"backend": "slurm", **WORK, **(settings or {}), "slurm": section}
        self.config.write_text(yaml.safe_dump(whole))
        words = [str(self.config), str(PROGRAMS / program), "--run-dir", str(path), *map(str, options)]
        super().__init__(path, program, command=["submit", "--attach", *words], **more)

    @property
    def job(self) -> int:
        """The leader's, once it is submitted."""
        return int(self.job_id)

    def jobs(self) -> dict[str, str]:
        """Names of this run's workers that SLURM has jobs for, with the jobs' ids."""
        known = self.dir.host()
        assert known is not None
        text = self.cluster.run("squeue", "-h", "-o", "%i %k", "-t", "PENDING,RUNNING,COMPLETING")
        rows = [line.split() for line in text.splitlines()]
        return {row[3]: row[0] for row in rows if row[2] == known.run and row[3].startswith("worker-")}

    def wait_until_squeue(self, what: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Until SLURM says so; it tells nobody by itself."""
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, self.cluster.run("squeue", "-a")
            time.sleep(0.1)

    def leaves_nothing(self) -> None:
        """Asserts that soon no job is left, but for those whose end SLURM itself takes its time to see."""
        self.wait_until_squeue(lambda: set(self.cluster.jobs().values()) <= {"COMPLETING"})


@pytest.fixture(scope="package", autouse=True)
def on_cluster(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PATH"):
            patch.setenv(name, cluster.environment[name])
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Callable[..., SlurmRun]]:
    """Submits runs; in the end no process and no job is left of them."""
    cluster.reset()
    with ExitStack() as runs:

        def make(
            program: str = "small_torch.py", *options: object, name: str = "run", **more: Any
        ) -> SlurmRun:
            run = SlurmRun(cluster, tmp_path / name, program, *options, **more)
            return runs.enter_context(run)

        yield make
    cluster.cancel_all()
    cluster.wait_until_idle()


class Blockers:
    """Jobs of somebody else's, that hold GPUs."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self.ids: list[str] = []

    def take(self, gpus: int, partition: str = "gpu") -> None:
        for _ in range(gpus):
            options = [
                "--parsable",
                f"--partition={partition}",
                "--gres=gpu:1",
                "--mem=100M",
                "--output=/dev/null",
            ]
            self.ids.append(self._cluster.run("sbatch", *options, "--wrap=sleep 600").strip())

    def give(self, gpus: int | None = None) -> None:
        """Lets go of so many, or all; returns once their GPUs are free."""
        count = len(self.ids) if gpus is None else gpus
        gone, self.ids = self.ids[:count], self.ids[count:]
        self._cluster.run("scancel", *gone)
        self._cluster.wait_until_gone(gone)


@pytest.fixture
def blockers(cluster: SlurmCluster) -> Blockers:
    return Blockers(cluster)
