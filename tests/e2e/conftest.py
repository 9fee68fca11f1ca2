"""Real runs: the command line, real processes, real signals."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticflow.cli.connection import Connection, status_of
from elasticflow.cluster.presence import NoMaster
from elasticflow.errors import RunError
from elasticflow.local.forkserver import FRAMEWORKS, VARIABLE, ForkServers
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import LiveStatus, Report
from elasticflow.wire.messages import StatusRequest

from . import forking
from .processes import CLI, end_all, new_mark
from .programs.gates import MARK, Gate

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S, TEST_PATIENCE_S = 240.0, 480
"""What hangs is ended after so long; what is only slow is not, on a machine with ten times the work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_PATIENCE_S))


def cli(
    *arguments: object, timeout_s: float = PATIENCE_S, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One command, to its end. cwd: the folder in which it is given."""
    command = [*CLI, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd)


def _allow(descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


class Run:
    """A run under way, and what tests do to it. End it after use: it is a context manager.

    path: its folder. shut: gates that are shut from the beginning, such as "step 10", where whoever
    is to compute step 10 is held. command: instead of the program and its folder, with its options.
    descriptors: so many each of its processes may have; 0: as many as this one. cwd: where it is given.
    """

    def __init__(
        self,
        path: Path,
        program: str,
        *options: object,
        shut: Sequence[str] = (),
        command: Sequence[str] = (),
        descriptors: int = 0,
        cwd: Path | None = None,
    ) -> None:
        self.dir = RunDir(path)
        self.path = path
        self.environment = dict(os.environ) if MARK in os.environ else new_mark()
        self._gates: dict[str, Gate] = {}
        for place in shut:
            self.shut(place)
        default = ["train", str(PROGRAMS / program), "--run-dir", str(path), *map(str, options)]
        descriptor, name = tempfile.mkstemp(prefix="elasticflow-")
        self._said: int | None = descriptor
        with open(name, "ab") as file:  # a file can be read at any time, and never fills up
            self.process = subprocess.Popen(
                [*CLI, *(command or default)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=partial(_allow, descriptors) if descriptors else None,
            )
        os.unlink(name)
        self._text = ""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        """Leaves no process behind, whatever has happened. Its output can still be read."""
        end_all(self.environment)
        self.process.wait()
        for place in list(self._gates):
            self.open(place)
        if self._said is not None:
            self._text = self.output()
            os.close(self._said)
            self._said = None

    # --- gates -----------------------------------------------------------------------------------

    def shut(self, place: str) -> None:
        """Whoever comes to this place of the program from now on is held there."""
        self._gates[place] = Gate(self.environment, place)

    def open(self, place: str) -> None:
        """Lets those go on that are held there."""
        self._gates.pop(place).open()

    def held_at(self, place: str, timeout_s: float = PATIENCE_S) -> int:
        """Waits for the next process that is held there, and returns its number."""
        return self._gates[place].next_pid(timeout_s)

    # --- what it says ----------------------------------------------------------------------------

    def status(self) -> LiveStatus:
        with Connection(self.dir) as connection:
            return connection.status()

    def report(self) -> Report:
        """How it went, once it is over."""
        report = self.dir.read_report()
        assert report is not None, self.output()
        return report

    def wait_until(self, what: Callable[[LiveStatus], object], timeout_s: float = PATIENCE_S) -> LiveStatus:
        """Waits for a status for which ``what`` is true. The master tells of each change.

        It does not tell of each state in between: what is over by the time that it answers is not seen.
        """
        deadline = time.monotonic() + timeout_s
        while not self.dir.address.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.01)  # nothing to wait on before there is a master
        news = -1
        try:
            with Connection(self.dir) as connection:
                while True:
                    request = StatusRequest(newer_than=news)
                    status = status_of(connection.ask(request, timeout_s=deadline - time.monotonic()))
                    assert status is not None
                    if what(status):
                        return status
                    assert status.state in ("starting", "running", "finishing"), self.output()
                    news = status.news or 0
        except NoMaster:
            raise
        except RunError as error:
            pytest.fail(f"{error}\n{self.output()}")

    def wait_for_step(self, step: int) -> LiveStatus:
        return self.wait_until(lambda status: status.step >= step)

    def wait_for_workers(self, count: int) -> LiveStatus:
        """Until exactly so many workers are ready, and nobody else is on the way."""
        return self.wait_until(lambda s: [w.state for w in s.workers] == ["ready"] * count)

    def wait_for_output(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        """Until the command has shown these words."""
        deadline = time.monotonic() + timeout_s
        while words not in self.output():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.01)  # a file cannot be waited on

    def output(self) -> str:
        """What the command has shown until now."""
        if self._said is None:
            return self._text
        return os.pread(self._said, os.fstat(self._said).st_size, 0).decode()

    # --- what is done to it ----------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """Of this member's process, once it has one: others may be at their steps before it has begun."""
        status = self.wait_until(lambda status: process_of(name, status))
        return process_of(name, status)

    def signal(self, name: str, number: int) -> int:
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)

    def stop(self, held_at: str) -> subprocess.CompletedProcess[str]:
        """``elasticflow stop`` while the run is, or soon will be, held at a gate: that cannot be too late."""
        command = [*CLI, "stop", str(self.path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.environment) as stopping:
            try:
                self.wait_until(lambda status: status.state == "finishing")
                self.open(held_at)
                out, err = stopping.communicate(timeout=PATIENCE_S)
            except BaseException:
                stopping.kill()
                raise
        return subprocess.CompletedProcess(command, stopping.returncode, out, err)

    def finish(self, timeout_s: float = PATIENCE_S) -> str:
        """Waits for the run's good end, and returns its output."""
        try:
            code, output = self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run does not end\n{self.output()}")
        assert code == 0, output
        return output

    def wait(self, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """Waits for the end, however it is: exit code and output."""
        code = self.process.wait(timeout_s)
        return code, self.output()

    def digest(self) -> str:
        return digest_in(self.finish())


def process_of(name: str, status: LiveStatus) -> int:
    """0 while it has none."""
    return next((member.pid for member in status.members if member.name == name), 0)


def digest_in(output: str) -> str:
    found = re.search(r"^digest: ([0-9a-f]{64})$", output, re.MULTILINE)
    assert found, output
    return found[1]


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A job in a shell's background ignores Ctrl-C, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def memory_is_poisoned() -> Iterator[None]:
    """In all processes of all runs: see ``elasticflow.process.poison``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELASTICFLOW_POISON", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def frameworks_are_imported_once(
    memory_is_poisoned: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Nurseries are forked, or most of the time would go into imports: see ``forking``."""
    servers = ForkServers(tmp_path_factory.mktemp("forkservers"), forking.INDIFFERENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(servers.folder))
        for framework in FRAMEWORKS:
            servers.ensure(framework, 1, forking.__name__)
        yield
    servers.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, and leaves no process behind."""
    with ExitStack() as runs:
        count = 0

        def make(program: str, *options: object, name: str = "", **more: Any) -> Run:
            nonlocal count
            run = runs.enter_context(Run(tmp_path / (name or f"run-{count}"), program, *options, **more))
            count += 1
            return run

        yield make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of applied_torch.py that is over, with a table; only to be read."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with Run(path, "applied_torch.py", "--epochs", 2, "--batch-size", 64, "--workers", 1) as run:
        run.finish()
    return path
