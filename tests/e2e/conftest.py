"""Real runs: the command line, real processes, real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow.cli.connection import Connection
from elasticflow.messages import StatusRequest
from elasticflow.run_dir import RunDir

PROGRAMS = Path(__file__).parent / "programs"
CLI = [sys.executable, "-m", "elasticflow.cli"]


def cli(*arguments: object, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    command = [*CLI, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


class Run:
    """A run under way, and what tests do to it."""

    def __init__(self, path: Path, program: str, *options: object) -> None:
        self.dir = RunDir(path)
        self.path = path
        command = [*CLI, "train", str(PROGRAMS / program), "--run-dir", str(path), *map(str, options)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def status(self) -> dict[str, Any]:
        with Connection(self.dir) as connection:
            answer = connection.ask(StatusRequest())
        assert answer.status is not None
        return answer.status

    def wait_until(self, what: Callable[[dict[str, Any]], object], timeout_s: float = 60) -> dict[str, Any]:
        """Waits for a status for which ``what`` is true. The master tells of each change."""
        deadline = time.monotonic() + timeout_s
        while not self.dir.address.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.01)  # nothing to wait on before there is a master
        news = -1
        with Connection(self.dir) as connection:
            while True:
                answer = connection.ask(StatusRequest(newer_than=news), timeout_s=deadline - time.monotonic())
                assert answer.status is not None
                if what(answer.status):
                    return answer.status
                assert answer.status["state"] in ("starting", "running", "finishing"), self.output()
                news = answer.status["news"]

    def wait_for_step(self, step: int) -> dict[str, Any]:
        return self.wait_until(lambda status: status["step"] >= step)

    def wait_for_workers(self, count: int) -> dict[str, Any]:
        """Until exactly so many workers are ready, and nobody else is on the way."""
        return self.wait_until(lambda s: [w["state"] for w in s["workers"]] == ["ready"] * count)

    def pid(self, name: str) -> int:
        status = self.status()
        members = (status["master"], *status["servers"], *status["workers"])
        return next(int(member["pid"]) for member in members if member["name"] == name)

    def signal(self, name: str, number: int) -> int:
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)

    def output(self) -> str:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.communicate()[0]

    def finish(self, timeout_s: float = 90) -> str:
        """Waits for the run's good end, and returns its output."""
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run does not end; {self.status()}")
        assert self.process.returncode == 0, output
        return output

    def wait(self, timeout_s: float = 60) -> tuple[int, str]:
        """Waits for the end, however it is: exit code and output."""
        output, _ = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, output

    def digest(self) -> str:
        return digest_in(self.finish())


def digest_in(output: str) -> str:
    found = re.search(r"^digest: ([0-9a-f]{64})$", output, re.MULTILINE)
    assert found, output
    return found[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, and leaves no process behind."""
    runs: list[Run] = []

    def make(program: str, *options: object, name: str = "") -> Run:
        run = Run(tmp_path / (name or f"run-{len(runs)}"), program, *options)
        runs.append(run)
        return run

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        if run.dir.is_locked() and run.dir.address.exists():
            os.kill(run.dir.read_address().pid, signal.SIGTERM)
            run.dir.wait_until_free()
