"""The local backend, its nursery and real processes: who is killed, and who lives on."""

from __future__ import annotations

import os
import re
import select
import signal
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cluster.contract import Ended, How
from elasticflow.errors import RunError
from elasticflow.local import backend as local
from elasticflow.local.backend import LocalBackend
from elasticflow.local.nursery import PACKET, News
from elasticflow.local.process import Process
from elasticflow.process.fingerprint import environment
from elasticflow.process.stacks import thread_names
from elasticflow.program.loading import import_all

from .toys import PATIENCE_S, Waiting, Watched, log_of, make_run, nursery_of, settings

GATE = """
open(os.environ["TOY_GATE"]).close()
"""
"""The nursery's imports last until somebody opens the gate."""


class Runs:
    """One run's folder, and the masters it has, one after the other."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.folder, self.environment = folder, environment
        self.run_dir = str(folder / "run")
        self.gate = folder / "gate"
        self.config: Any = None
        self.masters: list[Waiting] = []

    def make(self, extra: str = "", **options: Any) -> None:
        os.mkfifo(self.gate)
        self.environment.setenv("TOY_GATE", str(self.gate))
        self.config = make_run(self.folder, self.environment, extra, **options)

    def master(self, extra: str = "", **options: Any) -> Waiting:
        if self.config is None:
            self.make(extra, **options)
        self.masters.append(Waiting(self.config, self.run_dir))
        return self.masters[-1]

    def kill_master(self) -> None:
        """All that its end means to a nursery: the connection closes, whatever was not read."""
        self.masters[-1]._nursery.close()

    def open_gate(self) -> None:
        self.gate.open("w").close()  # waits until somebody reads

    def started(self, *names: str) -> list[Watched]:
        """Members, once they run."""
        pids = self.masters[-1].pids(*names)
        for name in names:
            log_of(self.run_dir, name)
        return [Watched(pid) for pid in pids.values()]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    made = Runs(tmp_path, monkeypatch)
    yield made
    for master in made.masters:
        master.close()


def kill_nursery(runs: Runs) -> None:
    nursery = Watched(nursery_of(runs.run_dir))
    nursery.kill()
    nursery.wait()


def test_how_members_end(runs: Runs) -> None:
    master = runs.master(threads=1)
    assert master.living() == {}
    master.start(settings("worker-1", "0"))
    master.start(settings("server-1", "3"))
    master.start(settings("worker-2"))
    assert master.num_running == 3
    runs.started("worker-2")
    master.kill("worker-2")
    assert "worker-2" in master.placed() and "worker-2" not in master.placed()
    ended = {end.name: end for end in master.ends(3)}
    assert ended["worker-1"] == Ended("worker-1", How.DONE, "ended with exit code 0")
    assert ended["server-1"].how is How.FAILED
    assert re.match(r"ended with exit code 3; its last words, in .*: runs server-1 ", ended["server-1"].text)
    assert ended["worker-2"] == Ended("worker-2", How.KILLED, "was killed by SIGKILL")
    assert master.num_running == 0
    master.kill("worker-2")


def test_a_member_inherits_nothing_but_its_log_and_settings(runs: Runs) -> None:
    master = runs.master(threads=1)
    for name in ("worker-1", "server-1"):
        master.start(settings(name))
    runs.started("worker-1", "server-1")
    for name in ("worker-1", "server-1"):
        log = f"'{runs.run_dir}/logs/{name}.log'"
        assert log_of(runs.run_dir, name) == f"runs {name} of 1 with ['/dev/null', {log}, {log}]\n"


BEGINS = '''
def begin(settings):
    """A process, and that one another, as programs do to prepare records."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        if "own" in settings.name:
            os.setsid()
        grandchild = os.fork()
        if grandchild:
            os.write(tell, str(grandchild).encode())
        signal.pause()
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    print(child, int(os.read(told, 20)), flush=True)
    signal.pause()

launch.run = begin
'''


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_program_has_begun_ends_with_its_member(runs: Runs, killed: bool) -> None:
    """But for what is in a session of its own, which is to live on."""
    master = runs.master(BEGINS)
    for name in ("worker-1", "owner-1"):
        master.start(settings(name))
    begun = {
        name: [Watched(int(pid)) for pid in log_of(runs.run_dir, name).split()]
        for name in ("worker-1", "owner-1")
    }
    for name, pid in master.pids(*begun).items():
        master.kill(name) if killed else os.kill(pid, signal.SIGUSR1)
    master.ends(2)
    for process in begun["worker-1"]:
        process.wait()
    for process in begun["owner-1"]:
        assert process.lives()
        process.kill()
        process.wait()


def test_what_a_program_has_begun_lives_as_long_as_its_member(runs: Runs) -> None:
    """Though its parent has ended, as of "server &" in a shell, and another member does."""
    master = runs.master(BEGINS)
    for name in ("worker-1", "worker-2"):
        master.start(settings(name))
    (_, other), (child, grandchild) = (
        [Watched(int(pid)) for pid in log_of(runs.run_dir, name).split()] for name in ("worker-1", "worker-2")
    )
    child.kill()
    master.kill("worker-1")
    master.ends(1)
    other.wait()
    assert grandchild.lives()
    master.kill("worker-2")
    master.ends(1)
    grandchild.wait()


def test_start_does_not_wait_for_the_imports(runs: Runs) -> None:
    master = runs.master(GATE)
    for number in range(300):  # more than the nursery's queue takes
        master.start(settings(f"worker-{number}", "0"))
    assert master.num_running == 300
    master.kill("worker-7")
    runs.open_gate()
    ended = {end.name: end.how for end in master.ends(300)}
    assert ended.pop("worker-7") in (How.KILLED, How.DONE)
    assert set(ended.values()) == {How.DONE}


def test_who_is_killed_before_it_runs_does_not_run_for_long(runs: Runs) -> None:
    master = runs.master(GATE)
    master.start(settings("worker-1"))
    master.kill("worker-1")
    runs.open_gate()
    (ended,) = master.ends(1)
    assert ended.how is How.KILLED


def test_the_next_master_is_told_what_lives_and_what_has_ended(runs: Runs) -> None:
    first = runs.master()
    for name in ("worker-1", "worker-2", "server-1", "worker-3"):
        first.start(settings(name))
    names = ("worker-1", "worker-2", "server-1")
    members = dict(zip(names, runs.started(*names), strict=True))
    first.kill("worker-3")
    assert [end.name for end in first.ends(1)] == ["worker-3"]
    first.ended()  # the end of worker-3 has been dealt with
    runs.kill_master()
    members["worker-2"].kill(signal.SIGTERM)
    members["worker-2"].wait()

    second = runs.master()
    alive = {"worker-1": members["worker-1"].pid, "server-1": members["server-1"].pid}
    assert {name: pid for name, pid in second.living().items() if name != "worker-2"} == alive
    assert second.ends(1) == [Ended("worker-2", How.KILLED, "was killed by SIGTERM")]
    assert second.num_running == 2
    second.kill("server-1")
    assert second.ends(1) == [Ended("server-1", How.KILLED, "was killed by SIGKILL")]
    runs.kill_master()

    third = runs.master()  # nobody has said that server-1's end was dealt with
    assert third.living() == {"worker-1": alive["worker-1"]}
    assert third.ends(1) == [Ended("server-1", How.KILLED, "was killed by SIGKILL")]
    third.start(settings("worker-4", "0"))
    assert third.ends(1) == [Ended("worker-4", How.DONE, "ended with exit code 0")]


def test_what_a_master_said_before_it_was_killed_is_done(runs: Runs) -> None:
    """Also where it had news to read, which makes the kernel report its end as an error first."""
    first = runs.master(GATE)
    first.start(settings("worker-1", "0"))
    runs.open_gate()
    assert select.select([first._nursery], [], [], PATIENCE_S)[0]  # there is news; nobody reads it
    first.start(settings("worker-2"))
    first.start(settings("worker-3"))
    runs.kill_master()

    second = runs.master()
    assert second.living().keys() >= {"worker-2", "worker-3"}
    assert second.ends(1) == [Ended("worker-1", How.DONE, "ended with exit code 0")]


def test_a_master_that_comes_while_the_nursery_imports(runs: Runs) -> None:
    """Its former one had asked for a member: there will be one of that name."""
    first = runs.master(GATE)
    first.start(settings("worker-1"))
    runs.kill_master()
    second = runs.master()
    second.start(settings("worker-2"))
    runs.open_gate()
    assert second.living().keys() >= {"worker-1"}
    runs.started("worker-2")
    assert second.num_running == 2


def test_one_master_at_a_time(runs: Runs) -> None:
    first = runs.master()
    first.start(settings("worker-1"))
    runs.started("worker-1")
    place = local._Records(runs.run_dir)
    other = place.connect()
    assert other is not None
    first.start(settings("worker-2"))
    runs.started("worker-2")
    assert not select.select([other], [], [], 0)[0]
    runs.kill_master()
    other.settimeout(PATIENCE_S)
    news = msgspec.json.decode(other.recv(PACKET), type=News)
    assert news.living.keys() == {"worker-1", "worker-2"}
    other.close()


def test_what_cannot_be_removed_ends_no_master(tmp_path: Path) -> None:
    """As on a disk that is read-only by now; here it is a folder that stands there."""
    place = local._Records(str(tmp_path))
    for path in (place.members / "worker-1", place.nursery):
        path.mkdir(parents=True)
    place.forget("worker-1")
    place.remove()
    assert place.nursery.is_dir()


def test_members_outlive_their_nursery(runs: Runs) -> None:
    master = runs.master()
    for name in ("worker-1", "worker-2", "server-1"):
        master.start(settings(name))
    worker, doomed, server = runs.started("worker-1", "worker-2", "server-1")
    kill_nursery(runs)
    doomed.kill()
    master.start(settings("worker-3"))
    assert master.ends(1) == [Ended("worker-2", How.KILLED, "ended")]
    runs.started("worker-3")
    assert worker.lives() and server.lives()
    assert master.num_running == 3
    master.kill("server-1")
    assert master.ends(1) == [Ended("server-1", How.KILLED, "ended")]
    for _ in range(3):  # a nursery that had nothing to start may be killed for ever
        kill_nursery(runs)
        master.wait_until(lambda: master._heard is False)
        master.wait_until(lambda: master._heard)
    assert worker.lives()


def test_a_nursery_killed_while_it_imports(runs: Runs) -> None:
    master = runs.master(GATE)
    master.start(settings("worker-1", "0"))
    first = nursery_of(runs.run_dir)
    kill_nursery(runs)
    master.wait_until(lambda: nursery_of(runs.run_dir) != first)
    runs.open_gate()
    assert master.ends(1) == [Ended("worker-1", How.DONE, "ended with exit code 0")]
    assert log_of(runs.run_dir, "worker-1").count("runs") == 1


HESITATES = """
from elasticflow.local.process import Process

if os.path.exists(os.environ["TOY_GATE"]):
    Process.record = lambda self, path: open(os.environ["TOY_GATE"]).close() or signal.pause()
"""


def test_a_nursery_killed_between_fork_and_news(runs: Runs) -> None:
    """The child nobody knows of never runs, so there are never two of a name."""
    master = runs.master(HESITATES)
    master.start(settings("worker-1"))
    runs.open_gate()  # it has forked
    runs.gate.unlink()
    nursery = nursery_of(runs.run_dir)
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
    (unknown,) = [Watched(int(pid)) for pid in children]
    kill_nursery(runs)
    unknown.wait()
    (worker,) = runs.started("worker-1")
    assert log_of(runs.run_dir, "worker-1").count("runs") == 1
    assert worker.pid != unknown.pid


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_imports_that_end_the_nursery_end_the_run(runs: Runs, end: str) -> None:
    master = runs.master("\n" + end)
    master.start(settings("worker-1"))
    with pytest.raises(
        RunError, match="nursery, which starts members, (ended with exit code 7|was killed by S)"
    ):
        master.ends(1)
    master.close()
    assert master.num_running == 0


def test_master_and_nursery_killed(runs: Runs) -> None:
    first = runs.master()
    for name in ("worker-1", "worker-2"):
        first.start(settings(name))
    worker, doomed = runs.started("worker-1", "worker-2")
    runs.kill_master()
    kill_nursery(runs)
    doomed.kill()
    doomed.wait()
    second = runs.master()
    assert second.living() == {"worker-1": worker.pid}
    assert second.ends(1) == [Ended("worker-2", How.KILLED, "ended")]
    second.kill("worker-1")
    assert second.ends(1) == [Ended("worker-1", How.KILLED, "ended")]


def test_a_nursery_killed_under_a_new_master(runs: Runs) -> None:
    """Those of the nursery before are known to it as well."""
    first = runs.master()
    first.start(settings("worker-1"))
    (oldest,) = runs.started("worker-1")
    kill_nursery(runs)
    first.start(settings("worker-2"))
    (older,) = runs.started("worker-2")
    runs.kill_master()
    second = runs.master()
    assert second.living() == {"worker-1": oldest.pid, "worker-2": older.pid}
    kill_nursery(runs)
    older.kill()
    assert second.ends(1) == [Ended("worker-2", How.KILLED, "ended")]
    oldest.kill()
    assert second.ends(1) == [Ended("worker-1", How.KILLED, "ended")]


def test_a_nursery_that_says_nothing_is_replaced(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "HELLO_S", 0.05)
    first = runs.master()
    first.start(settings("worker-1"))
    (worker,) = runs.started("worker-1")
    stuck = Watched(nursery_of(runs.run_dir))
    stuck.kill(signal.SIGSTOP)
    runs.kill_master()
    second = runs.master()
    assert second.living() == {"worker-1": worker.pid}
    stuck.wait()
    second.start(settings("worker-2"))
    runs.started("worker-2")


def test_without_a_master_all_ends(runs: Runs) -> None:
    first = runs.master(heartbeat_s=0.01, suspect_s=0.05, lost_s=0.1)
    first.start(settings("worker-1"))
    (worker,) = runs.started("worker-1")
    nursery = Watched(nursery_of(runs.run_dir))
    runs.kill_master()
    worker.wait()
    nursery.wait()
    second = runs.master()
    assert second.living() == {}
    assert second.ends(1) == [Ended("worker-1", How.KILLED, "ended")]


@pytest.mark.parametrize("orphaned", [False, True])
def test_close_ends_all(runs: Runs, orphaned: bool) -> None:
    master = runs.master()
    for name in ("worker-1", "server-1"):
        master.start(settings(name))
    members = runs.started("worker-1", "server-1")
    nursery = Watched(nursery_of(runs.run_dir))
    if orphaned:
        kill_nursery(runs)
    master.close()
    assert not any(process.lives() for process in (*members, nursery))
    assert master.num_running == 0
    assert not list(Path(runs.run_dir, "keys").iterdir())


def test_close_while_the_nursery_imports(runs: Runs) -> None:
    master = runs.master(GATE)
    master.start(settings("worker-1"))
    nursery = Watched(nursery_of(runs.run_dir))
    master.close()
    assert not nursery.lives()


def test_who_got_the_number_of_a_member_is_left_alone(tmp_path: Path) -> None:
    members = tmp_path / "keys" / "members"
    members.mkdir(parents=True)
    mine = Process.of(os.getpid())
    for name, process in {
        "worker-1": msgspec.structs.replace(mine, started=mine.started - 1),
        "worker-2": msgspec.structs.replace(mine, boot="another"),
        "worker-3": msgspec.structs.replace(mine, pid=1 << 22),
    }.items():
        process.record(members / name)
    (members / "worker-4").write_text("{")
    LocalBackend.clear(str(tmp_path))
    assert not members.exists()


def test_a_copy_of_the_folder_is_another_runs(runs: Runs, tmp_path: Path) -> None:
    master = runs.master(threads=1)
    master.start(settings("worker-1"))
    (worker,) = runs.started("worker-1")
    nursery = Watched(nursery_of(runs.run_dir))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", runs.run_dir, copy], check=True)
    LocalBackend.clear(str(copy))
    assert worker.lives() and nursery.lives() and not (copy / "keys" / "members").exists()
    Path(runs.run_dir).rename(tmp_path / "moved")  # it is the same one still
    LocalBackend.clear(str(tmp_path / "moved"))
    worker.wait()
    nursery.wait()
    (tmp_path / "moved").rename(runs.run_dir)


def test_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    runs.run_dir = str(tmp_path.joinpath(*["deep" * 20] * 4))
    master = runs.master()
    try:
        master.start(settings("worker-1", "0"))
        assert [end.how for end in master.ends(1)] == [How.DONE]
    finally:
        master.close()


def test_a_folder_that_takes_no_socket(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sockets.socket, "bind", refuse)
    with pytest.raises(RunError, match="no socket in this folder.*another disk"):
        runs.master()


THREAD = """
import threading
threading.Thread(target=signal.pause, daemon=True).start()
"""


def test_where_imports_start_threads_members_start_afresh(runs: Runs) -> None:
    master = runs.master(THREAD)
    master.start(settings("worker-1", run_dir=runs.run_dir))
    (ended,) = master.ends(1)  # a real one: it is missing its keys
    assert ended.how is How.FAILED
    assert "keys cannot be read" in ended.text
    told = Path(runs.run_dir, "logs", "nursery.log").read_text()
    assert "has started threads (" in told and "imports it for itself" in told


@pytest.mark.parametrize("module", ["pandas", "sklearn.datasets", "deltalake"])
def test_what_many_programs_import_starts_no_threads(module: str) -> None:
    pytest.importorskip(module)
    asked = "from elasticflow.process.stacks import thread_names; print(thread_names())"
    found = subprocess.run(
        [sys.executable, "-c", f"import {module}; {asked}"],
        env=environment(threads=1),
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "[]"


def test_threads_are_named_whatever_they_are_called_and_though_some_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel cuts a name off after 15 bytes."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    tasks = os.listdir("/proc/self/task")
    Path(f"/proc/self/task/{thread.native_id}/comm").write_bytes(("a" * 14 + "é").encode())
    monkeypatch.setattr(os, "listdir", lambda _: [*tasks, "0"])
    found = thread_names()
    ends.set()
    thread.join()
    assert "a" * 14 + "\ufffd" in found


def test_what_is_imported_of_a_module_is_there_before_children_are(tmp_path, monkeypatch):
    """As of transformers, whose names are made when they are asked for, or a module in matplotlib."""
    (tmp_path / "slow_pack").mkdir()
    (tmp_path / "slow_pack/__init__.py").write_text(
        "def __getattr__(name):\n"
        "    if name != 'Made':\n"
        "        raise AttributeError(name)\n"
        "    from slow_pack import made\n"
        "    return made\n"
    )
    for name in ("made", "plot"):
        (tmp_path / f"slow_pack/{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_all(["slow_pack.Made", "slow_pack", "slow_pack.Made", "slow_pack.plot", "slow_pack.nothing"])
    found = {name for name in list(sys.modules) if name.partition(".")[0] == "slow_pack"}
    for name in found:
        monkeypatch.delitem(sys.modules, name)
    assert found == {"slow_pack", "slow_pack.made", "slow_pack.plot"}
