"""The supervisor with real masters, nurseries and members: whatever is killed, and in whatever order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.local.backend import LocalBackend
from elasticflow.master.supervisor import TERMINATED, Budget, _cause
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir

from .toys import PATIENCE_S, Watched, log_of, make_run


def test_a_budget_is_for_a_stretch_of_time() -> None:
    budget = Budget(most=2, within_s=60)
    assert [budget.spend(now_s) for now_s in (0, 1, 60, 61, 62)] == [True, True, False, False, False]
    assert budget.spend(123)


class Supervised:
    """A supervisor with toy masters, which do as they are told; see ``toys.main``."""

    def __init__(self, config: Config, run_dir: str) -> None:
        self.run = RunDir(run_dir)
        self.run.logs.mkdir(parents=True, exist_ok=True)
        with self.run.master_log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.inprocess.toys", run_dir, msgspec.json.encode(config).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.hello = self.answer()
        self.master = Watched(self.hello["pid"])

    def ask(self, command: str) -> dict[str, Any]:
        self.say(command)
        return self.answer()

    def say(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.log()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log(self) -> str:
        return self.run.master_log.read_text()

    def members(self, *names: str) -> list[Watched]:
        """Starts members; returns them once they run, and the nursery."""
        for name in names:
            self.ask(f"start {name}")
            log_of(str(self.run.path), name)
        answer = self.ask(f"pids {' '.join(names)}")
        return [*(Watched(answer["pids"][name]) for name in names), Watched(answer["nursery"])]

    def next_master(self) -> dict[str, Any]:
        """What the master says that took the place of the one before."""
        self.master.wait()
        self.hello = self.answer()
        self.master = Watched(self.hello["pid"])
        return self.hello

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.master.lives():
            self.master.kill()
            self.master.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        LocalBackend.clear(str(self.run.path))


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []
    config: list[Config] = []

    def make(**options: Any) -> Supervised:
        if not config:
            config.append(make_run(tmp_path, monkeypatch, **options))
        made.append(Supervised(config[0], str(tmp_path / "run")))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[..., Supervised]


def children(pid: int) -> dict[int, str]:
    """A process's children and their states; Z is a zombie."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    return found


def test_a_killed_master_is_replaced_and_its_members_live_on(supervise: Make) -> None:
    run = supervise()
    assert not run.hello["again"] and run.hello["living"] == {}
    worker, server, nursery = run.members("worker-1", "server-1")
    for _ in range(3):
        run.master.kill()
        hello = run.next_master()
        assert hello["again"] and hello["living"] == {"worker-1": worker.pid, "server-1": server.pid}
    worker.kill()
    assert run.ask("ends 1") == {"ends": [["worker-1", "killed", "was killed by SIGKILL"]]}
    run.say("end 3")
    assert run.wait() == 3
    assert not server.lives() and not nursery.lives()
    assert not run.run.is_locked()
    assert run.log().count("warning: the master was killed by SIGKILL; another one takes its place") == 3


def test_a_master_that_fails_unexpectedly_is_replaced(supervise: Make) -> None:
    run = supervise()
    worker, _ = run.members("worker-1")
    run.say("raise")
    assert run.next_master()["living"] == {"worker-1": worker.pid}
    assert "ValueError: nobody expected this" in run.log()
    run.say("end 0")
    assert run.wait() == 0


def test_a_master_that_dies_again_and_again_is_given_up(supervise: Make) -> None:
    run = supervise()
    processes = run.members("worker-1", "worker-2")
    for _ in range(3):
        run.master.kill()
        run.next_master()
    run.master.kill()
    assert run.wait() == 1
    assert not any(process.lives() for process in processes)
    assert run.log().splitlines()[-1] == (
        "Error: the run is given up: its master died more than 3 times in 3600 s"
    )
    assert not run.run.is_locked()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_all(supervise: Make, number: int) -> None:
    run = supervise()
    processes = run.members("worker-1")
    run.process.send_signal(number)
    assert run.wait() == TERMINATED
    assert not any(process.lives() for process in (*processes, run.master))


def test_sigterm_to_the_master_ends_all(supervise: Make) -> None:
    run = supervise()
    processes = run.members("worker-1")
    run.master.kill(signal.SIGTERM)
    assert run.wait() == TERMINATED
    assert not any(process.lives() for process in processes)


def test_sigterm_while_the_master_is_dead(supervise: Make) -> None:
    run = supervise()
    processes = run.members("worker-1")
    run.process.send_signal(signal.SIGSTOP)
    run.master.kill()
    run.master.wait()
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGCONT)
    assert run.wait() == TERMINATED
    assert not any(process.lives() for process in processes)


def test_the_master_outlives_its_supervisor(supervise: Make) -> None:
    run = supervise()
    worker, nursery = run.members("worker-1")
    run.process.kill()
    assert run.wait() == -signal.SIGKILL
    assert run.run.is_locked()
    assert run.ask("start worker-2 0") == {}
    assert run.ask("ends 1") == {"ends": [["worker-2", "done", "ended with exit code 0"]]}
    run.say("end 0")
    run.master.wait()
    assert not worker.lives() and not nursery.lives()
    assert not run.run.is_locked()


@pytest.mark.parametrize("nursery_too", [False, True])
def test_what_is_left_of_a_run_ends_before_the_next_one(supervise: Make, nursery_too: bool) -> None:
    """Supervisor and master are killed; the members would wait for a master for a while."""
    run = supervise()
    worker, nursery = run.members("worker-1")
    run.process.kill()
    run.wait()
    run.master.kill()
    run.master.wait()
    assert worker.lives() and nursery.lives()
    assert not run.run.is_locked()  # members have no part in the lock
    if nursery_too:
        nursery.kill()
        nursery.wait()
    assert worker.lives()
    again = supervise()
    assert again.hello == {"pid": again.master.pid, "again": False, "living": {}}
    assert not worker.lives() and not nursery.lives()
    again.say("end 0")
    assert again.wait() == 0


def test_without_supervisor_and_master_all_ends_by_itself(supervise: Make) -> None:
    run = supervise(heartbeat_s=0.01, suspect_s=0.05, lost_s=0.1)
    worker, nursery = run.members("worker-1")
    run.process.kill()
    run.master.kill()
    worker.wait()
    nursery.wait()


def test_master_and_nursery_killed_at_once(supervise: Make) -> None:
    run = supervise()
    worker, doomed, nursery = run.members("worker-1", "worker-2")
    for process in (run.master, nursery, doomed):
        process.kill()
    hello = run.next_master()
    assert hello["living"].keys() - {"worker-2"} == {"worker-1"}
    assert [end[:2] for end in run.ask("ends 1")["ends"]] == [["worker-2", "killed"]]
    (third, _) = run.members("worker-3")
    run.say("end 0")
    assert run.wait() == 0
    assert not worker.lives() and not third.lives()


def test_no_zombies(supervise: Make) -> None:
    """What had another parent is buried by the supervisor."""
    run = supervise()
    one, two, nursery = run.members("worker-1", "worker-2")
    nursery.kill()
    nursery.wait()
    one.kill()
    assert [end[0] for end in run.ask("ends 1")["ends"]] == ["worker-1"]
    three, newer = run.members("worker-3")
    run.master.kill()
    run.next_master()
    newer.kill()
    two.kill()
    three.kill()
    assert {end[0] for end in run.ask("ends 2")["ends"]} == {"worker-2", "worker-3"}
    deadline = time.monotonic() + PATIENCE_S
    while children(run.process.pid).keys() != {run.master.pid}:
        assert time.monotonic() < deadline, children(run.process.pid)
        time.sleep(0.005)  # being buried cannot be waited for
    run.say("end 0")
    assert run.wait() == 0


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    lock = run.hold()
    ready, said = os.pipe()
    command = [sys.executable, "-m", "elasticflow.master", str(tmp_path), "--ready-fd", str(said)]
    done = subprocess.run(command, pass_fds=[said], capture_output=True, timeout=PATIENCE_S)
    os.close(said)
    os.close(lock)
    with os.fdopen(ready) as line:
        assert "another run is using this folder" in line.readline()
    assert done.returncode == 1 and b"another run is using this folder" in done.stdout
    assert run.wait_until_free(20.0) is None


@pytest.mark.parametrize(
    "code, words",
    [
        (70, "failed with exit code 70"),
        (-9, "was killed by SIGKILL"),
        (-signal.SIGRTMIN - 1, f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_why_a_master_died_whatever_signal_it_was(code: int, words: str) -> None:
    assert _cause(code) == words
