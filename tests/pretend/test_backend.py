"""What holds for any backend: the same tests for all, with clusters that are not there; ``local`` is."""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cli import page
from elasticflow.cluster.contract import Backend, Ended, How
from elasticflow.errors import RunError
from elasticflow.local.backend import LocalBackend
from elasticflow.run import config as configs
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_kubernetes.backend import KubernetesBackend
from elasticflow_kubernetes.pods import MEMBER, Pod
from elasticflow_slurm import backend as slurm
from elasticflow_slurm.client import JobRequest, SlurmJob, SlurmRefused
from elasticflow_yarn.backend import YarnBackend
from elasticflow_yarn.errors import YarnRefused
from tests.inprocess import toys
from tests.pretend.backend import CLUSTERS, PretendBackend
from tests.pretend.cluster import PretendCluster, PretendError
from tests.pure import kubernetes_world
from tests.slurm.fakes import FakeClient
from tests.yarn.fakes import FakeApplication, FakeManager, yarn_id


class Host(ABC):
    """A cluster, or a machine, on which a run's members can be. Each backend that is made is one master's."""

    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run

    @abstractmethod
    def backend(self) -> Backend: ...

    def config(self) -> Config:
        sections = {
            "kubernetes": {"poll_s": 0.02, "image": "python"},
            "slurm": {"poll_s": 0.02},
            "yarn": {"poll_s": 0.02, "rm_poll_s": 0.05, "queue": "train"},
        }
        return configs.make(None, {"program": "digits.py", "workers": "1..4"}, sections)

    def evict(self, name: str) -> None:
        """The cluster takes a member's place."""
        raise NotImplementedError

    def refuse(self) -> None:
        """The cluster never takes anything any more."""
        raise NotImplementedError

    @abstractmethod
    def living(self) -> list[str]:
        """Names, in truth."""


class PretendHost(Host):
    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(run, monkeypatch)
        self.cluster = CLUSTERS[str(run.path)] = PretendCluster({"n0": 4})

    def backend(self) -> Backend:
        return PretendBackend(self.config(), str(self.run.path))

    def evict(self, name: str) -> None:
        self.cluster.change(next(pod.id for pod in self.cluster.living() if pod.name == name), "Evicted")

    def refuse(self) -> None:
        self.cluster.forbids = True

    def living(self) -> list[str]:
        return [pod.name for pod in self.cluster.living()]


class PlayedApi:
    """What ``KubernetesClient`` and ``WatchedPods`` ask, asked of the cluster in memory."""

    def __init__(self, cluster: PretendCluster, run: str) -> None:
        self._cluster, self._run = cluster, run

    def now(self) -> list[Pod]:
        shown = [kubernetes_world.shown_as(pod) for pod in self._cluster.shown()]
        return [pod for pod in shown if pod is not None]

    def add(self, answer: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def create(self, manifest: dict[str, Any]) -> bytes:
        try:
            name = self._cluster.ask(manifest["metadata"]["labels"][MEMBER], (), self._run)
        except PretendError as error:
            raise kubernetes_world.error_of(error) from error
        return msgspec.json.encode({"metadata": {"name": name}})

    def delete(self, name: str, *, is_lost: bool = False) -> None:
        self._cluster.end(name)

    def delete_run(self, run: str) -> None:
        for pod in self._cluster.living():
            self._cluster.end(pod.id)

    def drained(self) -> set[str]:
        return self._cluster.drained


class KubernetesHost(Host):
    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(run, monkeypatch)
        publish(run.job, HostJob("kubernetes", "digits", "0123456789ab"))
        self.cluster = PretendCluster({"n0": 4})

    def backend(self) -> Backend:
        client: Any = PlayedApi(self.cluster, "0123456789ab")
        return KubernetesBackend(self.config(), str(self.run.path), client, client)

    def evict(self, name: str) -> None:
        self.cluster.change(next(pod.id for pod in self.cluster.living() if pod.name == name), "Evicted")

    def refuse(self) -> None:
        self.cluster.forbids = True

    def living(self) -> list[str]:
        return [pod.name for pod in self.cluster.living()]


class PlayedClient(FakeClient):
    """Starts what it is asked to at once."""

    def submit(self, request: JobRequest) -> int:
        id = super().submit(request) + 100
        told = request.options
        job = SlurmJob(id=id, name=told["job-name"], comment=told["comment"], state="RUNNING", node="g1")
        self.known.append(job)
        return id

    def cancel(self, ids: object) -> None:
        self.known = [self.change(job, "CANCELLED") if job.id in ids else job for job in self.known]  # type: ignore[operator]

    @staticmethod
    def change(job: SlurmJob, state: str) -> SlurmJob:
        return msgspec.structs.replace(job, state=state)

    @staticmethod
    def name(job: SlurmJob) -> str:
        return job.comment.split()[-1]


class SlurmHost(Host):
    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(run, monkeypatch)
        publish(run.job, HostJob("slurm", "12", "0123456789ab"))
        self.client = PlayedClient()
        monkeypatch.setattr(slurm, "choose", lambda environ: self.client)

    def backend(self) -> Backend:
        return slurm.SlurmBackend(self.config(), str(self.run.path))

    def evict(self, name: str) -> None:
        self.client.known = [
            self.client.change(job, "PREEMPTED") if self.client.name(job) == name else job
            for job in self.client.known
        ]

    def refuse(self) -> None:
        self.client.refusals["submit"] = SlurmRefused("Invalid partition name specified")

    def living(self) -> list[str]:
        return [self.client.name(job) for job in self.client.known if not job.over]


class YarnHost(Host):
    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(run, monkeypatch)
        monkeypatch.setattr(page, "start_page", lambda run_dir, show: None)
        monkeypatch.setenv("CONTAINER_ID", yarn_id(1))
        self.application = FakeApplication()

    def backend(self) -> Backend:
        return YarnBackend(self.config(), str(self.run.path), self.application, FakeManager)

    def evict(self, name: str) -> None:
        id = next(key for key, each in self.application.kept.items() if each == name).partition("/")[2]
        self.application.end(id, "FAILED", "Container preempted by scheduler")

    def refuse(self) -> None:
        self.application.add_error = YarnRefused("Skein refuses: Unknown service 'worker'")

    def living(self) -> list[str]:
        known = self.application.known
        names = {key.partition("/")[2]: name for key, name in self.application.kept.items()}
        return [names[id] for id, each in known.items() if not each.over and id in names]


class LocalHost(Host):
    """Nobody takes places here, or refuses any; and a nursery has one master (tests/inprocess)."""

    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(run, monkeypatch)
        self._config = toys.make_run(Path(str(run.path), "toys"), monkeypatch)

    def config(self) -> Config:
        return self._config

    def backend(self) -> Backend:
        return LocalBackend(self._config, str(self.run.path))

    def living(self) -> list[str]:
        return [path.name for path in Path(str(self.run.path), "keys", "members").glob("[!.]*")]


HOSTS: dict[str, type[Host]] = {
    "pretend": PretendHost,
    "kubernetes": KubernetesHost,
    "slurm": SlurmHost,
    "yarn": YarnHost,
    "local": LocalHost,
}
Begin = Callable[[], Backend]
clusters = pytest.mark.parametrize("host", [name for name in HOSTS if name != "local"], indirect=True)


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return HOSTS[request.param](RunDir(tmp_path), monkeypatch)


@pytest.fixture
def begin(host: Host) -> Iterator[Begin]:
    """A master's backend; the last one ends all there is."""
    begun: list[Backend] = []

    def start() -> Backend:
        begun.append(host.backend())
        begun[-1].living()
        return begun[-1]

    yield start
    for each in begun:
        each.close()


def until(backend: Backend, is_so: Callable[[list[Ended]], bool]) -> list[Ended]:
    """Does what a master's loop does; what has ended until then."""
    ended: list[Ended] = []
    deadline = time.monotonic() + 60.0
    while not is_so(ended):
        assert time.monotonic() < deadline, backend.shortage()
        poller = select.poll()
        for fd in backend.wait_fds():
            poller.register(fd, select.POLLIN)
        next_s = backend.next_time_s()
        wait_s = 1.0 if next_s is None else max(0.0, next_s - time.monotonic())
        poller.poll(min(wait_s, 1.0) * 1000)
        ended += [each for each in backend.ended() if each not in ended]
    return ended


def placed(backend: Backend, *names: str) -> None:
    found: list[str] = []

    def are_there(_: list[Ended]) -> bool:
        found.extend(backend.placed())
        return len(found) >= len(names)

    until(backend, are_there)
    assert sorted(found) == sorted(names), "each is told once"


def test_who_is_started_gets_a_place_and_is_told_of_once(begin: Begin, host: Host) -> None:
    backend = begin()
    for number in (1, 2):
        backend.start(toys.settings(f"worker-{number}", run_dir=str(host.run.path)))
    placed(backend, "worker-1", "worker-2")
    until(backend, lambda _: backend.shortage() == "")
    assert backend.num_running == 2 and sorted(host.living()) == ["worker-1", "worker-2"]
    assert backend.placed() == []


def test_who_is_killed_is_gone(begin: Begin, host: Host) -> None:
    backend = begin()
    backend.start(toys.settings("worker-1", run_dir=str(host.run.path)))
    backend.start(toys.settings("worker-2", run_dir=str(host.run.path)))
    placed(backend, "worker-1", "worker-2")
    backend.kill("worker-1")
    backend.kill("worker-9")
    ended = until(backend, lambda _: backend.num_running == 1)
    assert [each.name for each in ended] == (["worker-1"] if backend.tells_killed else [])
    backend.ended()
    backend.ended()
    assert host.living() == ["worker-2"]


@clusters
def test_another_master_knows_who_lives(begin: Begin, host: Host) -> None:
    first = begin()
    for number in (1, 2):
        first.start(toys.settings(f"worker-{number}", run_dir=str(host.run.path)))
    placed(first, "worker-1", "worker-2")
    until(first, lambda _: first.shortage() == "")
    second = host.backend()
    assert sorted(second.living(["worker-1", "worker-2"])) == ["worker-1", "worker-2"]
    placed(second, "worker-1", "worker-2")
    assert second.num_running == 2
    second.kill("worker-2")
    until(second, lambda _: second.num_running == 1)
    second.abandon()
    assert host.living() == ["worker-1"]


@clusters
def test_whose_place_was_taken_is_told_of_and_why(begin: Begin, host: Host) -> None:
    backend = begin()
    backend.start(toys.settings("worker-1", run_dir=str(host.run.path)))
    placed(backend, "worker-1")
    host.evict("worker-1")
    (ended,) = until(backend, bool)
    assert ended.name == "worker-1" and ended.how is How.TAKEN and ended.text
    assert backend.num_running == 0


@clusters
def test_a_cluster_that_takes_nothing_ends_the_run(begin: Begin, host: Host) -> None:
    backend = begin()
    host.refuse()
    backend.start(toys.settings("worker-1", run_dir=str(host.run.path)))
    with pytest.raises(RunError):
        until(backend, lambda _: False)


def test_nothing_is_left_of_what_is_closed(begin: Begin, host: Host) -> None:
    backend = begin()
    backend.start(toys.settings("worker-1", run_dir=str(host.run.path)))
    placed(backend, "worker-1")
    backend.close()
    assert host.living() == []
