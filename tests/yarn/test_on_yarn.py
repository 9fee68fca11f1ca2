"""The backend on a real YARN: containers that only sleep are asked for, given back, taken, and ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow.cli import page
from elasticflow.cluster.contract import Ended, How
from elasticflow.master.fence import Superseded
from elasticflow.run import config as configs
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow_yarn.application import Application
from elasticflow_yarn.backend import YarnBackend
from elasticflow_yarn.cluster import ResourceManager
from elasticflow_yarn.errors import ApplicationGone, YarnRefused
from tests.clusters.hadoop import HadoopCluster

pytestmark = [
    pytest.mark.yarn,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Skein leaves its driver's process to the garbage collector, ...
]
PATIENCE_S = 60.0
YARN = {"queue": "train", "poll_s": 0.2, "rm_poll_s": 0.3}


def specification(queue: str, workers: int = 0) -> dict[str, Any]:
    def service(gpus: int, instances: int) -> dict[str, Any]:
        return {
            "instances": instances,
            "max_restarts": 0,
            "allow_failures": True,
            "resources": {"memory": "128 MiB", "vcores": 1, "gpus": gpus},
            "script": "exec sleep 300",
        }

    return {
        "name": f"sleep-{queue}",
        "queue": queue,
        "master": {"resources": {"memory": "256 MiB", "vcores": 1}, "script": "sleep 300"},
        "services": {"worker": service(1, workers), "server": service(0, 0)},
    }


@pytest.fixture
def manager(hadoop: HadoopCluster) -> ResourceManager:
    hadoop.kill_applications()
    return ResourceManager([hadoop.rm_url], hadoop.user)


@pytest.fixture
def driver(hadoop: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Skein's."""
    import skein

    for name, value in hadoop.environment.items():
        monkeypatch.setitem(os.environ, name, value)
    with skein.Client() as client:
        yield client
    hadoop.kill_applications()


@pytest.fixture
def begin(
    driver: Any, manager: ResourceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], YarnBackend]]:
    """Starts a backend for a new application, as if this process was in its ApplicationMaster."""
    monkeypatch.setattr(page, "start_page", lambda run_dir, show: None)
    begun: list[YarnBackend] = []

    def start() -> YarnBackend:
        application = Application(driver.submit_and_connect(specification("train")))
        (own,) = manager.containers(application.id, 1)
        monkeypatch.setenv("CONTAINER_ID", own)
        begun.append(YarnBackend(settings(), str(tmp_path), application, lambda: manager))
        return begun[-1]

    yield start
    for backend in begun:
        backend.abandon()


def settings() -> Config:
    options = {"program": "digits.py", "workers": "1..6", "backend": "yarn"}
    return configs.make(None, options, {"yarn": YARN})


class Members:
    """What a master does with them: those that are wanted, and what became of others."""

    def __init__(self, backend: YarnBackend, number: int) -> None:
        self.backend, self._number = backend, number
        self.ended: list[Ended] = []
        self.returned: list[str] = []
        self.notes: list[str] = []
        self.wanted: set[str] = set()
        self._last = 0
        self._fill()

    def run_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        poller = select.poll()
        for fd in self.backend.wait_fds():
            poller.register(fd, select.POLLIN)
        while not is_so():
            assert time.monotonic() < deadline, (self.backend.shortage(), self.notes, self.ended)
            next_s = self.backend.next_time_s()
            wait_s = 1.0 if next_s is None else max(0.0, next_s - time.monotonic())
            poller.poll(min(wait_s, 1.0) * 1000)
            for ended in self.backend.ended():
                self.ended.append(ended)
                self.wanted.discard(ended.name)
            for name, why in self.backend.returns().items():
                self.returned.append(name)
                self.notes.append(f"{name} {why}")
                self.wanted.discard(name)
                self.backend.kill(name)
            self.notes += [text for _, text in self.backend.notes()]
            self._fill()

    def _fill(self) -> None:
        while len(self.wanted) < self._number:
            self._last += 1
            name = f"worker-{self._last}"
            self.wanted.add(name)
            self.backend.start(
                MemberSettings.of(
                    settings(), name=name, role="worker", host="", master="tcp://m:1", run_dir="hdfs:///r"
                )
            )

    @property
    def running(self) -> list[str]:
        return [name for name in self.wanted if " on node " in self.backend.where(name)]


def test_workers_come_and_go_as_there_is_room(
    begin: Callable[[], YarnBackend], driver: Any, manager: ResourceManager
) -> None:
    backend = begin()
    members = Members(backend, 7)
    members.run_until(lambda: len(members.running) == 6)
    members.run_until(lambda: "6 of 7: queue train is at its maximum of 6 GPUs, 1 " in backend.shortage())
    assert manager.queue("train").used.gpus == 6

    other = driver.submit_and_connect(specification("prod", workers=2))
    members.run_until(lambda: manager.queue("prod").used.gpus == 2)
    assert len(members.running) <= 4 and {ended.how for ended in members.ended} <= {How.TAKEN}
    given_back = [text for text in members.notes if "gives its place back: queue train uses" in text]
    preempted = [ended for ended in members.ended if "was preempted" in ended.text]
    assert len(given_back) == len(members.returned) and members.returned or preempted

    other.shutdown()
    members.run_until(lambda: len(members.running) == 6)


def test_what_skein_says_of_ends(
    begin: Callable[[], YarnBackend], hadoop: HadoopCluster, manager: ResourceManager
) -> None:
    backend = begin()
    application = backend._application
    members = Members(backend, 2)
    members.run_until(lambda: len(members.running) == 2)
    first, second = (each for each in application.containers() if each.state == "RUNNING")
    # A signal that comes before its process makes YARN leave it as it is for ever.
    members.run_until(lambda: hadoop.runs(second.yarn_id, "sleep"))
    application.kill(first.id)
    manager.signal(second.yarn_id)
    members.run_until(lambda: len(members.ended) >= 2 and len(members.running) == 2)
    hows = {ended.text.partition(" on ")[0]: ended.how for ended in members.ended}
    assert hows == {"was killed": How.TAKEN, "died": How.KILLED}, members.ended
    with pytest.raises(YarnRefused, match="Unknown service 'nobody'"):
        application.add("nobody", {})
    application.kill("worker_99")


def test_another_master_in_its_place_goes_on_with_them(
    begin: Callable[[], YarnBackend], manager: ResourceManager, tmp_path: Path
) -> None:
    first = begin()
    members = Members(first, 3)
    members.run_until(lambda: len(members.running) == 3)
    first.abandon()
    second = YarnBackend(settings(), str(tmp_path), first._application, lambda: manager)
    assert set(second.living(members.wanted)) == members.wanted and second.num_running == 3
    second.close()
    assert all(container.over for container in first._application.containers())


def test_without_its_application_master_a_master_ends(begin: Callable[[], YarnBackend], driver: Any) -> None:
    backend = begin()
    members = Members(backend, 1)
    members.run_until(lambda: len(members.running) == 1)
    driver.kill_application(backend._application.id)
    with pytest.raises(Superseded, match="its ApplicationMaster is gone"):
        members.run_until(lambda: False)
    with pytest.raises(ApplicationGone):
        backend._application.containers()
