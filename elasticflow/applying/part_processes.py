"""Where the processes that compute parts come from: forked by one that has the framework, or begun anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from elasticflow.process.forker import READY, ForkOrder, forker_sockets, heard_end, send_order

PROCESS = "elasticflow.applying.working"
STUCK_S = 30.0
"""Without a limit one waits for who is ending, or was killed: so long the forker may take to say so."""


class PartProcess(Protocol):
    """Of one process, as who began it sees it."""

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative: of the signal. Raises subprocess.TimeoutExpired."""


class PartProcesses:
    """Begins processes. forker_log: of the process that forks them; environment: theirs.

    module: what they run, see ``life``. One process forks all of them, once it has imported the framework. If
    it has ended, or cannot fork, each begins by itself.
    """

    def __init__(
        self, program: str, forker_log: Path, environment: Mapping[str, str], module: str = PROCESS
    ) -> None:
        self._environment, self._module = dict(environment), module
        self._socket, theirs = forker_sockets()
        self._ends: dict[str, int] = {}
        with theirs:
            self._forker = self._popen(forker_log, theirs.fileno(), program)
        self._forks: bool | None = None
        """None: it is still importing."""

    def begin(self, name: str, pipe_fd: int, log: Path) -> PartProcess:
        """pipe_fd: the process's end of its pipe."""
        if self._forks is None:
            self._forks = heard_end(self._socket) == READY
        if self._forks and self._forker.poll() is None:
            with log.open("ab") as output:
                send_order(self._socket, ForkOrder(name), pipe_fd, output.fileno())
            return _Forked(self, name)
        self._forks = False
        return self._popen(log, pipe_fd)

    @property
    def forker_pid(self) -> int:
        """Of the process that forks them."""
        return self._forker.pid

    def kill(self, name: str) -> None:
        """One that was forked."""
        send_order(self._socket, ForkOrder(name, kill=True))

    def wait(self, name: str, timeout: float | None) -> int:
        """For the end of one that was forked. timeout: None: of one that is ending, or was killed."""
        self._socket.settimeout(STUCK_S if timeout is None else timeout)
        while name not in self._ends:
            try:
                end = heard_end(self._socket)
            except TimeoutError:
                if timeout is not None:
                    raise subprocess.TimeoutExpired(name, timeout) from None
                self._forker.kill()  # it is stopped, say; what it has forked ends with it
                continue
            if end is None:  # all that it had forked ends with it
                return self._forker.wait()
            self._ends[end.name] = end.status
        return self._ends.pop(name)

    def close(self) -> None:
        """Ends the one that forks, and with it all others that are left."""
        self._socket.close()
        self._forker.kill()
        self._forker.wait()

    def _popen(self, log: Path, fd: int, *program: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", self._module, str(os.getpid()), str(fd), *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(fd,),
                env=self._environment,
            )


class _Forked:
    def __init__(self, origin: PartProcesses, name: str) -> None:
        self.kill: Callable[[], None] = lambda: origin.kill(name)
        self.wait: Callable[..., int] = lambda timeout=None: origin.wait(name, timeout)
