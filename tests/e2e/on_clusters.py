"""What runs on SLURM and on YARN have in common, as tests see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import yaml

from elasticflow.cluster.presence import NoMaster
from elasticflow.run.folder import UNKNOWN, HostJob
from elasticflow.run.telling import LiveStatus, Status

from .conftest import PATIENCE_S, Run

WORK = {"batch_size": 64, "slices": 8, "epochs": 3, "checkpoint_every": "5s", "snapshot_s": 0.2}
"""What the tests train, here and on the cluster: 48 steps."""


class ClusterRun(Run):
    """A run on a cluster; the process is ``submit --attach``, which ends with the run's exit code."""

    def wait_until(self, what: Callable[[LiveStatus], object], timeout_s: float = PATIENCE_S) -> LiveStatus:
        """As for any run; but its master's job may go, and wait for a place again."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return super().wait_until(what, deadline - time.monotonic())
            except NoMaster:
                assert time.monotonic() < deadline, self.output()

    @property
    def job_id(self) -> str:
        """Of the job in which its master is, once it is submitted."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.dir.job.exists():
                job = msgspec.json.decode(self.dir.job.read_bytes(), type=HostJob)
                if job.id != UNKNOWN:
                    return job.id
            time.sleep(0.02)  # a file cannot be waited on
        raise AssertionError(self.output())


def ready(status: Status) -> list[str]:
    """Workers that take part."""
    return [worker.name for worker in status.workers if worker.state == "ready"]


CARRIED = ("--workers", 2, "--strategy", "all_reduce", "--places", 2, "--checkpoint-every", 8)
"""Options of a run without servers of its own, for ``settled``."""


def settled(status: Status) -> bool:
    """Two workers take part, each of them carries a server, and no place is on its way."""
    moves = status.regrouping or len(status.servers) > 2  # one comes before another goes
    carriers = {server.place.removeprefix("carried by ") for server in status.servers}
    return len(ready(status)) == 2 and carriers == set(ready(status)) and not moves


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The digest of the same work done here, with nothing done to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = folder / "local.yaml"
    config.write_text(yaml.safe_dump(WORK))
    with Run(folder / "run", "small_torch.py", "--config", config, "--workers", 1) as run:
        yield run.digest()
