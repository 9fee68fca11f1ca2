"""A service that tests start, kill and start again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from elasticflow import checkpoint
from elasticflow.cli.connection import Connection
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow.service import talk

from .conftest import PATIENCE_S, PROGRAMS
from .processes import CLI, new_mark

OPTIONS = ("--epochs", 3, "--batch-size", 40, "--servers", 1, "--checkpoint-every", "5s")
"""75 steps of small_torch.py."""


class Served:
    """A service in its folder, as often as it is started; all its processes end with the test."""

    def __init__(self, folder: Path, workers: int, more: str = "", slice_s: float = 0.02) -> None:
        """workers: nodes with one each. more: lines of its settings."""
        self.folder, self.runs = folder / "service", folder
        self.environment = {**new_mark(), "SLICE_S": str(slice_s)}
        self.settings = folder / "service.yaml"
        self.settings.write_text(
            f"folder: {self.folder}\nnodes: {workers}\nworkers_per_node: 1\nmeasure_s: 1\npoll_s: 0.1\n{more}"
        )
        self.log = folder / "service.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*CLI, "serve", str(self.settings)], stdout=log, stderr=log, env=self.environment
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(RunError):
                talk.ask(self.folder, talk.ListTasks())
                return
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)  # a socket that is not there yet cannot be waited for

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def submit(self, name: str, *options: object) -> str:
        """Hands in small_torch.py; returns the task's name."""
        run = ("--run-dir", self.run_of(name).path, "--service", self.folder)
        command = [*CLI, "submit", str(PROGRAMS / "small_torch.py"), *map(str, (*OPTIONS, *run, *options))]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_of(self, name: str) -> RunDir:
        return RunDir(self.runs / name)

    def tasks(self) -> dict[str, talk.ToldTask]:
        return {task.name: task for task in talk.ask(self.folder, talk.ListTasks()).tasks}

    def wait_until(self, what: Callable[[dict[str, talk.ToldTask]], object]) -> dict[str, talk.ToldTask]:
        deadline = time.monotonic() + PATIENCE_S
        while not what(tasks := self.tasks()):
            assert time.monotonic() < deadline, f"{tasks}\n{self.log.read_text()}"
            time.sleep(0.05)  # who asks is answered at once
        return tasks

    def workers_of(self, name: str) -> int:
        with Connection(self.run_of(name)) as connection:
            return len(connection.status().workers)

    def finish(self, *names: str) -> dict[str, talk.ToldTask]:
        tasks = self.wait_until(lambda tasks: all(tasks[name].state for name in names))
        assert {tasks[name].state for name in names} == {"finished"}, f"{tasks}\n{self.log.read_text()}"
        return tasks

    def digest(self, name: str) -> str:
        storage = self.run_of(name).storage()
        manifest, damages = checkpoint.newest_intact(storage)
        assert manifest is not None and not damages
        return checkpoint.digest(storage, manifest)
