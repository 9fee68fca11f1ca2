"""A service that tests start, kill and start again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from elasticflow import checkpoint
from elasticflow.cli.connection import Connection
from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir
from elasticflow.service import talk

from .conftest import PATIENCE_S, PROGRAMS, Run
from .processes import CLI, end_all, new_mark

OPTIONS = ("--epochs", 3, "--batch-size", 40, "--servers", 1, "--checkpoint-every", "5s")
"""75 steps of small_torch.py."""
LONG = ("--epochs", 16)
"""A cluster has time to start a second one meanwhile, and it to grow, which nobody does at its end."""


Self = TypeVar("Self", bound="Served")


def digest_alone(folder: Path, *options: object) -> str:
    """That of a run of this kind which nobody disturbs."""
    with Run(folder / "run", "small_torch.py", *OPTIONS, *options, "--workers", 1) as run:
        return run.digest()


class Served:
    """A service in its folder, as often as it is started; all its processes end with the ``with``."""

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

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.kill()
        self.clear()
        end_all(self.environment)

    def clear(self) -> None:
        """Ends what its runs have on a cluster."""

    def check_places(self) -> None:
        """That its runs have no more places than it shares, as the cluster sees it."""

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

    def submit(self, name: str, *options: object, program: Path = PROGRAMS / "small_torch.py") -> str:
        """Hands it in; returns the task's name."""
        run = ("--run-dir", self.run_of(name).path, "--service", self.folder)
        command = [*CLI, "submit", str(program), *map(str, (*OPTIONS, *run, *options))]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_of(self, name: str) -> RunDir:
        return RunDir(self.runs / name)

    def nursery_of(self, name: str) -> Path:
        """The file that says which process it is."""
        return self.runs / name / "keys" / "nursery.json"

    def tasks(self) -> dict[str, talk.ToldTask]:
        answer = talk.ask(self.folder, talk.ListTasks(over=100))
        return {task.name: task for task in answer.tasks}

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


def two_under_deadlines(service: Served, expected: str, *options: object) -> None:
    """Both are under way when the service is killed; what was promised stands, and no digest changes."""
    first = service.submit("first", "--deadline", "+30m", *options)
    service.wait_until(lambda tasks: tasks[first].promised_at)
    second = service.submit("second", "--deadline", "+30m", *options)
    tasks = service.wait_until(lambda tasks: tasks[second].step > 3 and tasks[first].step > 3)
    assert sum(task.held for task in tasks.values()) <= 4
    assert not any(task.state for task in tasks.values()), "one is over: the runs are too short here"
    service.kill()
    service.check_places()
    service.start()
    after = service.tasks()
    assert {name: after[name].promised_at for name in after} == {
        name: tasks[name].promised_at for name in after
    }
    tasks = service.finish(first, second)
    assert all(task.promised_at for task in tasks.values()), tasks
    assert service.digest("first") == service.digest("second") == expected
