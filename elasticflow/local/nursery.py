"""Forks workers from a process that has imported what they need, so that one is there in milliseconds.

``python -m elasticflow.local.nursery MODULE...`` imports the modules, then reads lines of JSON from
standard input and writes such lines to standard output:

    {"start": SETTINGS, "log": PATH}    ->  {"started": NAME, "pid": PID}, later {"ended": NAME, "status": N}

A child has to start from a clean process: no threads, no sockets, no pools. So the nursery imports the
modules that the program imports, but never runs the program itself; and if an import started a thread,
children are started afresh instead of being forked. When standard input closes, the master is gone,
and the nursery ends its children and itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from typing import Any

import msgspec

from elasticflow import launch
from elasticflow.settings import MemberSettings

ALWAYS = (
    "numpy.random",
    "zmq",
    "elasticflow.worker.worker",
    "elasticflow.strategies",
    "elasticflow_ps.client",
)


def preload(modules: list[str]) -> None:
    """Imports modules; what cannot be imported is left for the worker to complain of."""
    for name in (*ALWAYS, *modules):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    adapters = {"torch": "elasticflow.frameworks.pytorch", "tensorflow": "elasticflow.frameworks.tensorflow"}
    for framework, adapter in adapters.items():
        if framework in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(adapter)


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Nursery:
    """Children by the descriptor that becomes readable when they end."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._children: dict[int, tuple[str, int]] = {}
        self._poller = select.poll()
        self._poller.register(commands, select.POLLIN)

    def run(self) -> None:
        buffer = b""
        while True:
            for fd, _ in self._poller.poll():
                if fd in self._children:
                    self._bury(fd)
                    continue
                data = os.read(self._commands, 1 << 16)
                if not data:
                    self._end_all()
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._start(json.loads(line))

    def _reply(self, **fields: Any) -> None:
        os.write(self._replies, json.dumps(fields).encode() + b"\n")

    def _start(self, command: dict[str, Any]) -> None:
        settings = msgspec.convert(command["start"], MemberSettings)
        pid = self._fork(settings, command["log"]) if num_threads() == 1 else _spawn(settings, command["log"])
        fd = os.pidfd_open(pid)
        self._children[fd] = settings.name, pid
        self._poller.register(fd, select.POLLIN)
        self._reply(started=settings.name, pid=pid)

    def _fork(self, settings: MemberSettings, log: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            for fd in (self._commands, self._replies, *self._children):
                os.close(fd)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = launch.run(settings)
        except BaseException:  # noqa: BLE001  (its log is all that is left of this child)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _bury(self, fd: int) -> None:
        name, pid = self._children.pop(fd)
        self._poller.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        self._reply(ended=name, status=os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        for _, pid in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _spawn(settings: MemberSettings, log: str) -> int:
    """A fresh process: slower, but right where a fork would not be."""
    text = msgspec.json.encode(settings).decode()
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticflow.launch", text],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    process.returncode = 0  # the nursery waits for it itself
    return process.pid


def main() -> None:
    """See the module's docstring."""
    # The pipes get numbers of their own: whatever the imports print goes to the log.
    commands, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    preload(sys.argv[1:])
    gc.freeze()  # what was imported stays; children need not look at it, nor copy its pages for that
    Nursery(commands, replies).run()
    os._exit(0)  # tidying up after a framework takes half a second, and there is nothing to save


if __name__ == "__main__":
    main()
