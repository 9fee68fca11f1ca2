"""Whether a run has a master, as clients find out."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from elasticflow.cluster import contract as backend
from elasticflow.cluster.contract import Backend
from elasticflow.cluster.presence import (
    Presence,
    find_address,
    is_alive,
    presence_of,
    read_address,
    wait_until_over,
)
from elasticflow.errors import ConfigError, RunError
from elasticflow.process.named import load_named
from elasticflow.run.folder import Address, HostJob, RunDir, publish
from tests.telling import report_of

HERE = Address("tcp://h:1", "h", 1)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def lock(run: RunDir) -> int:
    """A master has it, in this process."""
    return run.hold()


class Elsewhere(Presence):
    """Of runs whose masters are on other machines."""

    alive = True

    def is_alive(self) -> bool:
        return self.alive

    def wait_until_over(self, timeout_s: float) -> None:
        while self.alive:
            time.sleep(0.005)


@pytest.fixture
def elsewhere(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> type[Elsewhere]:
    class Cluster(Backend):
        @staticmethod
        def presence(run_dir: str) -> Presence:
            return Elsewhere(run_dir)

    monkeypatch.setattr(backend, "load_backend", {"cloud": Cluster}.__getitem__)
    publish(run.job, HostJob("cloud", "7", "0123456789ab"))
    Elsewhere.alive = True
    return Elsewhere


def release_soon(lock: int) -> None:
    threading.Timer(0.1, os.close, [lock]).start()


def test_who_holds_the_lock_is_the_master(run: RunDir) -> None:
    assert not is_alive(run) and type(presence_of(run)) is Presence
    lock = run.hold()
    assert is_alive(run)
    release_soon(lock)
    wait_until_over(run)
    assert not is_alive(run)


def test_the_address_of_a_run(run: RunDir, lock: int) -> None:
    publish(run.address, HERE)
    assert read_address(run) == find_address(run, presence_of(run), 0.0) == HERE


def test_its_master_has_not_said_where_it_is_yet(run: RunDir, lock: int) -> None:
    with pytest.raises(RunError, match="its master starts or ends just now; try again"):
        find_address(run, presence_of(run), 0.05)
    threading.Timer(0.1, publish, [run.address, HERE]).start()
    assert find_address(run, presence_of(run), 20.0) == HERE


def test_a_run_that_is_over(run: RunDir) -> None:
    publish(run.address, HERE)
    begun_s = time.monotonic()
    with pytest.raises(RunError, match="this run is over"):
        find_address(run, presence_of(run), 20.0)
    assert time.monotonic() - begun_s < 5.0, "nobody waits for what will not come"


def test_how_it_ended_is_told(run: RunDir) -> None:
    publish(run.report, report_of("finished", "all 8 steps are done"))
    with pytest.raises(RunError, match="this run is over: finished, all 8 steps are done"):
        read_address(run)


def test_it_ends_while_somebody_waits_for_its_address(run: RunDir) -> None:
    release_soon(run.hold())
    with pytest.raises(RunError, match="this run is over"):
        find_address(run, presence_of(run), 20.0)


def test_a_run_of_another_backend_is_asked_for_there(
    run: RunDir, elsewhere: type[Elsewhere], lock: int
) -> None:
    """Whoever holds a lock on this machine."""
    assert type(presence_of(run)) is elsewhere and is_alive(run)
    publish(run.address, HERE)
    assert find_address(run, presence_of(run), 0.0) == HERE
    elsewhere.alive = False
    assert not is_alive(run)
    with pytest.raises(RunError, match="this run is over"):
        read_address(run)


def test_waiting_for_the_end_of_a_run_elsewhere(run: RunDir, elsewhere: type[Elsewhere]) -> None:
    waiting = threading.Thread(target=wait_until_over, args=[run])
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    elsewhere.alive = False
    waiting.join(20.0)
    assert not waiting.is_alive()


def test_a_backend_that_is_not_installed_here(run: RunDir) -> None:
    publish(run.job, HostJob("no such", "7", "0123456789ab"))
    with pytest.raises(ConfigError, match="'no such' is unknown; there are"):
        is_alive(run)


def test_a_package_that_is_not_installed_here() -> None:
    with pytest.raises(ConfigError, match="echo needs the package elasticflow_echo, which is not here"):
        load_named("backend", "echo", {"echo": "elasticflow_echo.backend:EchoBackend"})


def test_a_job_file_that_cannot_be_read(run: RunDir) -> None:
    run.job.write_text("{")
    with pytest.raises(RunError, match="job.json: cannot be read"):
        is_alive(run)
