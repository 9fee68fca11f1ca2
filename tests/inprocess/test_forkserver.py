"""Fork servers and the nurseries that they fork: the same processes as those that a master starts itself."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow.local import forkserver
from elasticflow.local.forkserver import VARIABLE, ForkServers, framework_of
from elasticflow.local.process import recorded
from elasticflow.process.fingerprint import environment
from tests.clusters.processes import parent_of

from .toys import PATIENCE_S, Waiting, Watched, log_of, make_run, nursery_of, settings

FRAMEWORK = "torch"
"""Here a module with nothing in it, which comes before the real one on the path."""


class Owner:
    """Of a fork server, and of runs that know it."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch, framework: str = "") -> None:
        self.config = make_run(folder, environment, threads=1)
        folder.joinpath("library", f"{FRAMEWORK}.py").write_text(framework)
        environment.syspath_prepend(folder / "library")
        folder.joinpath("program.py").write_text(f"import toy_member, {FRAMEWORK}\n")
        self.folder = folder
        self.masters: list[Waiting] = []
        self.servers = ForkServers(folder / "forkservers", ["EACH_ITS_OWN", "PYTEST_CURRENT_TEST"])
        environment.setenv(VARIABLE, str(self.servers.folder))

    def start(self) -> Watched:
        """A fork server, once it listens."""
        self.servers.ensure(FRAMEWORK, 1)
        deadline = time.monotonic() + PATIENCE_S
        while not (self.servers.folder / f"{FRAMEWORK}.sock").exists():
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.005)  # a file cannot be waited for
        return self.process()

    def process(self) -> Watched:
        found = recorded(self.servers.folder / f"{FRAMEWORK}.json")
        assert found is not None
        return Watched(found.pid)

    def master(self, name: str = "run") -> Waiting:
        self.masters.append(Waiting(self.config, str(self.folder / name)))
        return self.masters[-1]

    def close(self) -> None:
        for master in self.masters:
            master.close()
        self.servers.close()


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    made = Owner(tmp_path, monkeypatch)
    yield made
    made.close()


def started_by(master: Waiting) -> int:
    """The parent of a run's nursery, which then starts a member."""
    master.start(settings("worker-1"))
    master.pids("worker-1")
    return parent_of(nursery_of(master._run_dir))


def test_its_members_are_as_those_of_any_nursery(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = owner.start()
    monkeypatch.chdir(owner.folder)
    monkeypatch.setenv("EACH_ITS_OWN", "1")
    master = owner.master()
    assert master.living() == {}
    assert started_by(master) == server.pid
    log = f"'{owner.folder}/run/logs/worker-1.log'"
    assert log_of(master._run_dir, "worker-1") == f"runs worker-1 of 1 with ['/dev/null', {log}, {log}]\n"
    master.start(settings("worker-2", "3"))
    (ended,) = master.ends(1)
    assert "ended with exit code 3" in ended.text
    pid = nursery_of(master._run_dir)
    assert os.readlink(f"/proc/{pid}/cwd") == str(owner.folder)
    assert os.getsid(pid) == pid, "signals to the fork server's group are not for it"
    fds = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert len([each for each in fds if each.startswith("socket:")]) == 2, "its listener, and the master"


def test_the_next_master_finds_it_and_it_is_replaced_when_it_dies(owner: Owner) -> None:
    server = owner.start()
    first = owner.master()
    assert started_by(first) == server.pid
    first._nursery.close()
    second = owner.master()
    assert set(second.living()) == {"worker-1"}
    nursery = Watched(nursery_of(second._run_dir))
    nursery.kill()
    nursery.wait()
    second.start(settings("worker-2"))
    second.wait_until(lambda: nursery_of(second._run_dir) != nursery.pid)
    second.pids("worker-2")
    assert parent_of(nursery_of(second._run_dir)) == server.pid


@pytest.mark.parametrize("difference", ["environment", "limits", "framework", "umask", "code", "user"])
def test_who_would_get_another_process_starts_it_itself(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, difference: str
) -> None:
    owner.start()
    limits, mask = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o077)
    os.umask(0o070 if difference == "umask" else mask)
    if difference == "environment":
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    if difference == "limits":
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0] - 1, limits[1]))
    if difference == "framework":
        owner.folder.joinpath("library", f"{FRAMEWORK}.py").write_text("# another version\n")
    if difference == "code":
        monkeypatch.setattr(forkserver, "own_code", lambda: "edited meanwhile")
    if difference == "user":
        monkeypatch.setattr(forkserver, "uid_of", lambda line: os.getuid() + 1)
    try:
        assert started_by(owner.master()) == os.getpid()
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_it_dies_and_nurseries_live_on(owner: Owner) -> None:
    server = owner.start()
    master = owner.master()
    assert started_by(master) == server.pid
    server.kill()
    server.wait()
    master.start(settings("worker-2", "3"))
    assert "exit code 3" in master.ends(1)[0].text
    assert started_by(owner.master("other")) == os.getpid()
    again = owner.start()
    assert again.pid != server.pid and started_by(owner.master("third")) == again.pid


def test_one_that_is_stuck_is_not_waited_for_and_starts_nothing_later(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = owner.start()
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.05)
    server.kill(signal.SIGSTOP)
    master = owner.master()
    assert started_by(master) == os.getpid()
    server.kill(signal.SIGCONT)
    monkeypatch.setattr(forkserver, "ANSWER_S", PATIENCE_S)
    assert started_by(owner.master("other")) == server.pid  # by now it has dealt with what came before
    assert set(master._place.recorded()) == {"worker-1"}
    assert parent_of(nursery_of(master._run_dir)) == os.getpid()


def test_one_that_is_stuck_later_holds_up_nobody(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = owner.start()
    master = owner.master()
    assert started_by(master) == server.pid
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.05)
    server.kill(signal.SIGSTOP)
    forked = nursery_of(master._run_dir)
    Watched(forked).kill()
    master.start(settings("worker-2"))
    master.pids("worker-2")
    assert parent_of(nursery_of(master._run_dir)) == os.getpid()


def test_one_that_is_killed_and_buried_at_once_is_replaced(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = owner.start()
    fork, killed = forkserver.fork_nursery, []

    def fork_and_kill(*arguments: Any) -> forkserver.ForkedNursery | None:
        found = fork(*arguments)
        if found and not killed:
            killed.append(found.process.pid)
            found.kill()
            while Path(f"/proc/{killed[0]}").exists():
                time.sleep(0.005)  # nobody tells of that
        return found

    monkeypatch.setattr(forkserver, "fork_nursery", fork_and_kill)
    master = owner.master()
    assert started_by(master) == server.pid
    assert nursery_of(master._run_dir) != killed[0]


def test_an_owner_that_was_killed_leaves_it_to_the_next_one(owner: Owner) -> None:
    server = owner.start()
    other = ForkServers(owner.servers.folder)
    other.ensure(FRAMEWORK, 1)
    assert owner.process().pid == server.pid
    other.close()
    server.wait()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_owner_whose_folder_is_gone_ends_its_own_and_nobody_elses(owner: Owner, is_replaced: bool) -> None:
    """It waited for its own, which nothing told of, as long as that lived, and ended the other owner's."""
    own, before = owner.start(), owner.servers
    shutil.rmtree(before.folder)
    if is_replaced:
        owner.servers = ForkServers(before.folder)
        others = owner.start()
    before.close()
    own.wait()
    if is_replaced:
        assert others.lives()
    else:
        owner.servers = ForkServers(before.folder)


def test_what_starts_threads_is_imported_by_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = "import threading, signal\nthreading.Thread(target=signal.pause, daemon=True).start()\n"
    owner = Owner(tmp_path, monkeypatch, thread)
    try:
        owner.servers.ensure(FRAMEWORK, 1)
        process = owner.servers._started[FRAMEWORK]
        assert process.wait(PATIENCE_S) == 1
        assert "has started threads" in (owner.servers.folder / f"{FRAMEWORK}.log").read_text()
        owner.servers.ensure(FRAMEWORK, 1)
        assert owner.servers._started[FRAMEWORK] is process, "it is not tried again"
        assert started_by(owner.master()) == os.getpid()
    finally:
        owner.close()


def test_one_for_which_nobody_asks_ends(owner: Owner) -> None:
    code = "from elasticflow.local import forkserver as it; it.IDLE_S = 0.1; it.main(%r)"
    arguments = [str(owner.servers.folder), FRAMEWORK, "PYTEST_CURRENT_TEST"]
    done = subprocess.run([sys.executable, "-c", code % arguments], env=environment(1), timeout=PATIENCE_S)
    assert done.returncode == 0
    assert started_by(owner.master()) == os.getpid(), "its socket is still there"


def test_whose_it_is() -> None:
    assert framework_of(["numpy", "torch.nn", "torch"]) == "torch"
    assert framework_of(["tensorflow.keras"]) == "tensorflow"
    assert framework_of(["numpy"]) == framework_of(["torch", "tensorflow"]) == ""
