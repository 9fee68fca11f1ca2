"""Members as processes of this machine: servers of their own, workers forked by a nursery."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from elasticflow.backend import Backend, Ended, How
from elasticflow.config import Config
from elasticflow.errors import RunError
from elasticflow.fingerprint import environment
from elasticflow.local import nursery, tied
from elasticflow.program import imports
from elasticflow.settings import MemberSettings


class LocalBackend(Backend):
    """See Backend."""

    host = "127.0.0.1"

    def __init__(self, config: Config, run_dir: str) -> None:
        self._logs = Path(run_dir, "logs")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._environment = environment(config.threads)
        self._servers: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._pids: dict[str, int] = {}
        self._running: set[str] = set()
        self._buffer = b""
        with (self._logs / "nursery.log").open("ab") as log:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, *imports(config.program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                bufsize=0,
            )
        assert self._nursery.stdin and self._nursery.stdout
        self._commands, self._replies = self._nursery.stdin.fileno(), self._nursery.stdout.fileno()
        os.set_blocking(self._replies, False)

    def start(self, settings: MemberSettings) -> None:
        log = self._logs / f"{settings.name}.log"
        self._running.add(settings.name)
        if settings.role == "worker":
            command = {"start": msgspec.to_builtins(settings), "log": str(log)}
            os.write(self._commands, json.dumps(command).encode() + b"\n")
            return
        text = msgspec.json.encode(settings).decode()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", tied.__name__, str(os.getpid()), text],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
            )
        self._servers[os.pidfd_open(process.pid)] = settings.name, process
        self._pids[settings.name] = process.pid

    def kill(self, name: str) -> None:
        if name in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[name], signal.SIGKILL)

    def wait_fds(self) -> list[int]:
        return [self._replies, *self._servers]

    def ended(self) -> list[Ended]:
        return [*self._ended_workers(), *self._ended_servers()]

    def _ended_servers(self) -> list[Ended]:
        ended = []
        for fd, (name, process) in list(self._servers.items()):
            if process.poll() is not None:
                del self._servers[fd]
                os.close(fd)
                ended.append(self._told(name, process.returncode))
        return ended

    def _ended_workers(self) -> list[Ended]:
        try:
            data = os.read(self._replies, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            code = self._nursery.wait()
            raise RunError(f"the nursery, which starts workers, {_cause(code)}; see {self._logs}/nursery.log")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        ended = []
        for reply in map(json.loads, lines):
            if "started" in reply:
                self._pids[reply["started"]] = reply["pid"]
            else:
                ended.append(self._told(reply["ended"], reply["status"]))
        return ended

    def _told(self, name: str, code: int) -> Ended:
        self._pids.pop(name, None)
        self._running.discard(name)
        text = _cause(code)
        how = How.FAILED if code > 0 else How.KILLED if code < 0 else How.DONE
        if code > 0:
            text += f"; its last words, in {self._logs / name}.log: {_last_line(self._logs / f'{name}.log')}"
        return Ended(name, how, text)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def close(self) -> None:
        for _, process in self._servers.values():
            process.kill()
            process.wait()
        assert self._nursery.stdin
        self._nursery.stdin.close()  # ends the workers that are left
        try:
            self._nursery.wait(timeout=2)
        except subprocess.TimeoutExpired:  # it is importing still: it does not listen, and has no children
            self._nursery.kill()
            self._nursery.wait()


def _cause(code: int) -> str:
    """What an exit status means, to follow a process's name."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return "(none)"
