"""Runs that are submitted to the cluster, and what is done to them and to the cluster."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clusters.hadoop import Container, HadoopCluster
from tests.clusters.processes import environ
from tests.e2e.conftest import PATIENCE_S, PROGRAMS, TEST_PATIENCE_S, ctrl_c_is_heard
from tests.e2e.on_clusters import WORK, ClusterRun, ready, undisturbed
from tests.e2e.processes import new_mark
from tests.e2e.programs.gates import MARK

__all__ = ["WORK", "ctrl_c_is_heard", "ready", "undisturbed"]

SMALL = {
    "queue": "train",
    "python": sys.executable,
    "master_memory": "1 GiB",
    "server_memory": "1 GiB",
    "memory": "1 GiB",
    "poll_s": 0.3,
    "rm_poll_s": 1,
    "patience_s": 5,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.yarn)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # Skein's own
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TEST_PATIENCE_S))


class YarnRun(ClusterRun):
    """A run on the cluster; the process is ``submit --attach``, which ends with the run's exit code."""

    def __init__(
        self,
        cluster: HadoopCluster,
        folder: Path,
        url: str,
        program: str,
        *options: object,
        yarn: Any = None,
        settings: Any = None,
        **more: Any,
    ) -> None:
        self.cluster = cluster
        env = {name: os.environ[name] for name in (MARK, "PYTHONPATH") if name in os.environ}
        section = {**SMALL, **(yarn or {}), "env": env}  # containers inherit nothing
        self.config = folder / "yarn.yaml"
        chosen = {"backend": "yarn", **WORK, **(settings or {}), "yarn": section}
        self.config.write_text(yaml.safe_dump(chosen))
        words = [str(self.config), str(PROGRAMS / program), "--run-dir", url, *map(str, options)]
        super().__init__(url, program, command=["submit", "--attach", *words], **more)  # type: ignore[arg-type]

    def held_at(self, place: str, timeout_s: float = PATIENCE_S) -> int:
        """As for any run; but one that never comes there tells why."""
        try:
            return super().held_at(place, timeout_s)
        except TimeoutError:
            pytest.fail(f"nobody came to {place}\n{self.output()}")

    @property
    def application(self) -> str:
        """Its id, once it is submitted."""
        return self.job_id

    @property
    def attempts(self) -> int:
        """How many ApplicationMasters there have been."""
        url = f"{self.cluster.rm_url}/ws/v1/cluster/apps/{self.application}/appattempts"
        with urllib.request.urlopen(url) as answer:
            return len(json.load(answer)["appAttempts"]["appAttempt"])

    def container_of(self, pid: int) -> Container:
        """The container that a process is in."""
        known = environ(pid)
        found = [
            one for one in self.cluster.containers(self.application) if f"CONTAINER_ID={one.id}" in known
        ]
        assert found, (pid, self.cluster.containers(self.application))
        return found[0]

    def java_of_master(self) -> int:
        """The process of Skein's ApplicationMaster."""
        container = self.container_of(self.pid("master"))
        pids = self.cluster.pids(container.id)
        return next(pid for pid in pids if os.readlink(f"/proc/{pid}/exe").endswith("/java"))

    def wait_until_containers(self, count: int) -> None:
        """Until the application has so many, that of its ApplicationMaster included."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := self.cluster.containers(self.application)) != count:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)  # YARN tells nobody

    def leaves_nothing(self, timeout_s: float = 60.0) -> None:
        """Asserts that soon no application is left, and no container of one."""
        deadline = time.monotonic() + timeout_s
        while self.application in (left := self.cluster.applications()):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)  # YARN tells nobody


@pytest.fixture(scope="package", autouse=True)
def on_cluster(hadoop: HadoopCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "JAVA_HOME", "HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
            patch.setenv(name, hadoop.environment[name])
        patch.setenv("SKEIN_CONFIG", str(tmp_path_factory.mktemp("skein")))  # no other cluster's driver
        patch.delenv(MARK, raising=False)
        yield


@pytest.fixture
def url(hadoop: HadoopCluster) -> str:
    """Of a folder that is not there yet."""
    return f"{hadoop.hdfs_url}/user/{hadoop.user}/tests/{secrets.token_hex(4)}"


@pytest.fixture
def submit(
    hadoop: HadoopCluster, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., YarnRun]]:
    """Submits runs; in the end no process and no application is left of them."""
    monkeypatch.setenv(MARK, new_mark()[MARK])
    hadoop.reset()
    with ExitStack() as runs:

        def make(
            program: str = "small_torch.py", *options: object, name: str = "run", **more: Any
        ) -> YarnRun:
            return runs.enter_context(
                YarnRun(hadoop, tmp_path, f"{url}/{name}", program, *options, **more)  # type: ignore[arg-type]
            )

        yield make
    hadoop.reset()


class Others:
    """Somebody else's application, which holds GPUs, each in a container of its own."""

    def __init__(self, client: Any, queue: str) -> None:
        self._client, self._queue = client, queue
        self._ids: list[str] = []

    def take(self, gpus: int) -> str:
        """Asks for so many, at once; returns the application's id."""
        sleep = {
            "instances": gpus,
            "resources": {"memory": "64 MiB", "vcores": 1, "gpus": 1},
            "script": "sleep 1000",
        }
        self._ids.append(
            self._client.submit({"name": "others", "queue": self._queue, "services": {"sleep": sleep}})
        )
        return self._ids[-1]

    def wait_until_taken(self, gpus: int) -> None:
        """Until the application that was asked for last has so many."""
        application = self._client.connect(self._ids[-1])
        deadline = time.monotonic() + PATIENCE_S
        while len(application.get_containers(states=["RUNNING"])) < gpus:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # YARN tells nobody

    def give(self) -> None:
        """Lets go of all."""
        while self._ids:
            self._client.kill_application(self._ids.pop())


@pytest.fixture(scope="package")
def skein_client(on_cluster: None) -> Iterator[Any]:
    """A driver of Skein's, for all tests; a process of its own, which Skein would leave to be collected."""
    import skein

    folder = Path(os.environ["SKEIN_CONFIG"])
    driver = [sys.executable, "-m", "skein.cli", "driver"]
    subprocess.run([*driver, "start"], check=True, capture_output=True)
    try:
        address = json.loads((folder / "driver").read_text())["address"]
        with skein.Client(address=address, security=skein.Security.from_directory(str(folder))) as client:
            yield client
    finally:
        subprocess.run([*driver, "stop"], check=True, capture_output=True)


@pytest.fixture
def others(skein_client: Any) -> Iterator[Others]:
    """In the queue of our runs."""
    made = Others(skein_client, "train")
    yield made
    made.give()


@pytest.fixture
def prod(skein_client: Any) -> Iterator[Others]:
    """In the queue that has the larger share."""
    made = Others(skein_client, "prod")
    yield made
    made.give()
