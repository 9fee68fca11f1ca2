"""The servers that a worker carries: processes that end with it, and of whose ends it tells."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from elasticflow.process.fd_event import FdEvent
from elasticflow.wire.messages import Beat, FromMaster, Leaving, ToMaster
from elasticflow.worker.carrying import Carrying

WORKER = """
import os, sys, time
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.worker.carrying import Carrying, PorterProcess

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one act: others write there, too

def live(settings):
    say("lives", settings.name, settings.role, os.getpid())
    while settings.name != "server-9":
        time.sleep(60)
    return 3

settings = MemberSettings.of(
    Config(backend="local"), name="worker-1", role="worker", host="", master="", run_dir="/nowhere"
)
carrying = Carrying("worker-1", PorterProcess(settings, live))
carrying.begin(lambda ended: say("told", ended.member, ended.failed, ended.text))
say("porter", *open(f"/proc/self/task/{os.getpid()}/children").read().split())
for line in sys.stdin:
    carrying.carry(tuple(line.split()))
"""
PATIENCE_MS = 60_000


class CarryingWorker:
    """A worker's process, which carries what it is told to."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, text=True, bufsize=1
        )
        self.porter = int(self.next("porter")[0])

    def carry(self, *servers: str) -> None:
        assert self.process.stdin
        print(*servers, file=self.process.stdin)

    def next(self, word: str) -> list[str]:
        """What follows the next line's first word."""
        assert self.process.stdout
        first, *rest = self.process.stdout.readline().split()
        assert first == word, rest
        return rest

    def begin(self, *servers: str) -> dict[str, int]:
        """Carries servers that it has not carried before; their process numbers."""
        self.carry(*servers)
        lines = [self.next("lives") for _ in servers]
        assert {role for _, role, _ in lines} == {"server"}
        return {name: int(pid) for name, _, pid in lines}


@pytest.fixture
def worker() -> Iterator[CarryingWorker]:
    made = CarryingWorker()
    yield made
    made.process.kill()
    made.process.communicate()


def has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(PATIENCE_MS))


def test_it_starts_whom_it_is_told_to_and_ends_all_others(worker: CarryingWorker) -> None:
    pids = worker.begin("server-0", "server-1")
    watched = os.pidfd_open(pids["server-0"])
    worker.carry("server-1")
    assert worker.next("told") == ["server-0", "False", "was", "killed", "by", "SIGKILL"]
    assert has_ended(watched)
    os.kill(pids["server-1"], 0)


def test_that_one_has_ended_is_said_again_to_who_has_not_heard(worker: CarryingWorker) -> None:
    (pid,) = worker.begin("server-0").values()
    os.kill(pid, signal.SIGKILL)
    first = worker.next("told")
    worker.carry("server-0")
    assert worker.next("told") == first, "and it is not started again"


def test_an_error_of_its_own_is_a_failure(worker: CarryingWorker) -> None:
    worker.begin("server-9")
    assert worker.next("told")[:2] == ["server-9", "True"]


@pytest.mark.parametrize("victim", ["worker", "porter"])
def test_all_end_with_the_worker(worker: CarryingWorker, victim: str) -> None:
    pids = worker.begin("server-0", "server-1")
    watched = [os.pidfd_open(pid) for pid in (*pids.values(), worker.porter, worker.process.pid)]
    os.kill(worker.process.pid if victim == "worker" else worker.porter, signal.SIGKILL)
    assert all(has_ended(fd) for fd in watched)


def test_a_notice_ends_nobody_that_is_carried(worker: CarryingWorker) -> None:
    """A cluster sends SIGTERM to all processes of a place; others fetch copies from there until it ends."""
    (pid,) = worker.begin("server-0").values()
    for each in (worker.porter, pid):
        os.kill(each, signal.SIGTERM)
    worker.carry("server-0", "server-1")
    assert worker.next("lives")[0] == "server-1"
    os.kill(pid, 0)


class OnePorter:
    """Of a server that ends as soon as another master has been told something."""

    nurse = None

    def listen(self, bury: Callable[[str, bool, str], None]) -> None:
        self.bury = bury

    def start(self, name: str) -> None:
        self.name = name


class TwoMasters:
    """A ``MasterLink``: the master that was told that the worker has left is gone, and there is another."""

    def __init__(self, porter: OnePorter) -> None:
        self._event, self._porter = FdEvent(), porter
        self._event.set()
        self.said: list[ToMaster] = []

    @property
    def wake_fd(self) -> int:
        return self._event.fd

    def received(self) -> list[FromMaster]:
        self._event.clear()
        return [Beat(incarnation=2)]

    def send(self, message: ToMaster) -> None:
        self.said.append(message)
        self._porter.bury(self._porter.name, False, "is done")


def test_another_master_hears_that_a_worker_has_left_which_still_carries_servers() -> None:
    """Else it would wait for what nobody computes, if one of the servers was lost before the last commit."""
    porter = OnePorter()
    carrying = Carrying("worker-1", porter)  # type: ignore[arg-type]
    carrying.begin(lambda message: None)
    carrying.carry(("server-0",))
    link, last_word = TwoMasters(porter), Leaving(name="worker-1", ended=1)
    carrying.wait(link, last_word)  # type: ignore[arg-type]
    assert link.said == [last_word]
