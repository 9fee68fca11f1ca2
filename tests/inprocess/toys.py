"""Members and masters that do nothing but live and end; the rest around them is real."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticflow.cluster.contract import Ended
from elasticflow.local.backend import LocalBackend
from elasticflow.local.process import has_ended, recorded
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings

PATIENCE_S = 60.0
"""How long a test waits for what has to happen."""
TOY_MEMBER = '''
import os, signal
from elasticflow import launch

def run(settings):
    """Ends with the exit code that stands in ``data``; without one, never."""
    descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
    print("runs", settings.name, "of", os.environ["OMP_NUM_THREADS"], "with", descriptors, flush=True)
    if settings.data:
        return int(settings.data)
    signal.pause()

launch.run = run
'''


def make_run(folder: Path, environment: pytest.MonkeyPatch, extra: str = "", **options: Any) -> Config:
    """A run's settings, whose members are toys. extra: what happens as well when a nursery imports them."""
    library = folder / "library"
    library.mkdir(parents=True)
    (library / "toy_member.py").write_text(TOY_MEMBER + extra)
    (folder / "program.py").write_text("import toy_member\n")
    paths = [str(library), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment.setenv("PYTHONPATH", os.pathsep.join(paths))
    return Config(program=str(folder / "program.py"), **options)


def settings(name: str, data: str = "", run_dir: str = "") -> MemberSettings:
    return MemberSettings(
        name=name,
        role=name.partition("-")[0],
        host="127.0.0.1",
        master="tcp://127.0.0.1:1",
        run_dir=run_dir,
        program="program.py",
        data=data,
        seed=0,
        threads=1,
        batch_size=8,
        num_slices=8,
        heartbeat_s=0.5,
        lost_s=60.0,
        encrypt_data=False,
        timeline=False,
    )


class Watched:
    """A process, by a descriptor, so that its end can be waited for whoever its parent is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def lives(self) -> bool:
        return not has_ended(self._fd)

    def kill(self, number: int = signal.SIGKILL) -> None:
        signal.pidfd_send_signal(self._fd, number)

    def wait(self) -> None:
        assert has_ended(self._fd, PATIENCE_S), f"process {self.pid} goes on"

    def __del__(self) -> None:
        os.close(self._fd)


class Waiting(LocalBackend):
    """Waits as a master does: for the backend's descriptors, then asks what has ended."""

    def __init__(self, config: Config, run_dir: str) -> None:
        super().__init__(config, run_dir)
        self.seen: list[Ended] = []

    def wait_until(self, what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            poller = select.poll()
            for fd in self.wait_fds():
                poller.register(fd, select.POLLIN)
            assert poller.poll(max(0.0, deadline - time.monotonic()) * 1000), "nothing happens"
            self.seen += self.ended()

    def ends(self, count: int) -> list[Ended]:
        """The next so many ends."""
        self.wait_until(lambda: len(self.seen) >= count)
        ends, self.seen = self.seen[:count], self.seen[count:]
        return ends

    def pids(self, *names: str) -> dict[str, int]:
        """Process numbers of members, once they have been started."""
        self.wait_until(lambda: set(names) <= self._members.keys())
        return {name: self._members[name].pid for name in names}


def nursery_of(run_dir: str) -> int:
    """Its process number."""
    found = recorded(Path(run_dir, "keys", "nursery.json"))
    assert found is not None
    return found.pid


def log_of(run_dir: str, name: str) -> str:
    """A member's log, once there is a line in it."""
    path = Path(run_dir, "logs", f"{name}.log")
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{name} writes nothing"
        time.sleep(0.005)  # a file cannot be waited for
    return path.read_text()


def main() -> int:
    """``python -m tests.inprocess.toys RUN_DIR CONFIG``: a supervisor whose masters do as they are told.

    They read words from standard input, one line a command, and answer each with a line of JSON.
    """
    from elasticflow.master.supervisor import Budget, Supervisor

    answers = os.dup(1)
    os.dup2(2, 1)  # the log
    RunDir(sys.argv[1]).hold()
    run_dir, config = sys.argv[1], Config(**json.loads(sys.argv[2]))

    def say(**fields: Any) -> None:
        os.write(answers, json.dumps(fields).encode() + b"\n")

    def master(again: bool) -> int:
        backend = Waiting(config, run_dir)
        try:
            say(pid=os.getpid(), again=again, living=backend.living())
            while True:
                word, *rest = read_line().split()
                if word == "start":
                    backend.start(settings(rest[0], rest[1] if rest[1:] else ""))
                    say()
                elif word == "pids":
                    say(pids=backend.pids(*rest), nursery=nursery_of(run_dir))
                elif word == "ends":
                    say(ends=[(end.name, end.how.value, end.text) for end in backend.ends(int(rest[0]))])
                elif word == "end":
                    backend.close()
                    return int(rest[0])
                elif word == "raise":
                    raise ValueError("nobody expected this")
        except SystemExit:
            backend.close()
            raise

    return Supervisor(master, lambda: LocalBackend.clear(run_dir), Budget(3, 3600.0)).run()


def read_line() -> str:
    """A line of standard input, and nothing of the next one: that may be for another master."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1) or b"end 1\n"
    return line.decode()


if __name__ == "__main__":
    sys.exit(main())
