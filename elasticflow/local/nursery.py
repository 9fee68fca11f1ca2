"""Forks members from a process that has imported what they need, so that one is there in milliseconds.

``python -m elasticflow.local.nursery LISTENER FOLDER LOST_S MODULE...`` imports the modules, then
listens at a Unix socket for the run's master: one at a time. Each packet is one message, so a master
that is killed leaves whole ones or none.

    master  -> nursery   StartOrder, Forget
    nursery -> master    News: first everything that lives, and all ends that were not yet forgotten;
                         then what happens, as it happens

When a master goes, the nursery and its children live on, and wait for the next one; if none comes for
``lost_s``, it ends its children and itself. If the nursery is killed, its children live on as well: files
in the folder say which they are. A child begins only when that file is there and the master was told,
so there is never one that nobody knows of.

Each child leads a process group: what its program has begun, such as a process that prepares records, ends
with it. What is to live on begins a session of its own.

A child has to start from a clean process: no threads, no sockets, no pools. So the nursery imports the
modules that the program and those beside it import, but not these, and never runs the program; and if an
import started a thread, children are started afresh instead of being forked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket as sockets
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from elasticflow import launch
from elasticflow.local.process import Process
from elasticflow.process.decoding import from_json
from elasticflow.process.ending import leave
from elasticflow.process.fingerprint import own_code
from elasticflow.process.stacks import num_threads, thread_names
from elasticflow.program.loading import import_all
from elasticflow.run.settings import MemberSettings

ALWAYS = (
    "numpy.random",
    "zmq",
    "elasticflow.local.backend",
    "elasticflow.worker.life",
    "elasticflow.worker.strategy",
    "elasticflow.storage",
    "elasticflow_ps.client",
    "elasticflow_ps.server",
)
NAME = "ef-nursery"
PACKET = 1 << 20
"""Bytes of the longest packet there could be."""


class StartOrder(msgspec.Struct, frozen=True, tag=True):
    """Start this member. log: path of the file that gets its output."""

    settings: MemberSettings
    log: str


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The master has dealt with the ends of these; the next one need not hear of them."""

    names: tuple[str, ...]


Command: TypeAlias = StartOrder | Forget


class News(msgspec.Struct, frozen=True):
    """Members that live, and the exit statuses of those that have ended (negative: of the signal)."""

    living: dict[str, Process] = {}
    ended: dict[str, int] = {}


def preload(modules: Sequence[str]) -> None:
    """Imports modules; what cannot be imported is left for the worker to complain of."""
    own_code()  # what is loaded here; whoever is forked later says the same
    gc.disable()  # of what an import makes almost all stays: an eighth of its time would go into looking
    import_all((*ALWAYS, *modules))
    from elasticflow.frameworks import warm_up  # only now: a master that starts a nursery has no use for them

    warm_up(list(sys.modules))


class Nursery:
    """Children by the descriptor that becomes readable when they end."""

    def __init__(
        self, listener: sockets.socket, folder: Path, lost_s: float, environment: dict[str, str]
    ) -> None:
        self._listener, self._folder, self._lost_s = listener, folder, lost_s
        self._environment = environment
        self._children: dict[int, tuple[str, Process]] = {}
        self._ended: dict[str, int] = {}
        self._master: sockets.socket | None = None
        self._alone_since_s = time.monotonic()

    def run(self) -> None:
        """Until no master has come for ``lost_s``."""
        while ready := self._wait():
            for fd in ready:
                if fd in self._children:
                    self._bury(fd)
                elif self._master is None:
                    self._welcome()
                else:
                    self._obey(self._master)
        self._end_all()

    def _wait(self) -> list[int]:
        """Descriptors at which something has happened; none: it is time to leave."""
        poller = select.poll()
        for fd in (*self._children, (self._master or self._listener).fileno()):
            poller.register(fd, select.POLLIN)
        timeout_s = None
        if self._master is None:
            timeout_s = max(0.0, self._alone_since_s + self._lost_s - time.monotonic())
        return [fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)]

    def _welcome(self) -> None:
        self._master, _ = self._listener.accept()
        self._tell(News(living=dict(self._children.values()), ended=self._ended))

    def _tell(self, news: News) -> None:
        if self._master is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # reading will show it
                self._master.send(msgspec.json.encode(news))

    def _obey(self, master: sockets.socket) -> None:
        try:
            packet = master.recv(PACKET)
        except ConnectionResetError:  # it has gone without reading all; what it had said still comes
            return
        if not packet:
            master.close()
            self._master, self._alone_since_s = None, time.monotonic()
            return
        command = from_json(packet, Command)
        if isinstance(command, Forget):
            for name in command.names:
                self._ended.pop(name, None)
        else:
            self._start(command)

    def _start(self, command: StartOrder) -> None:
        name = command.settings.name
        held, go = os.pipe()
        pid = self._fork(command, held, go) if num_threads() == 1 else self._spawn(command, held)
        process = Process.of(pid)
        process.record(self._folder / name)
        self._children[os.pidfd_open(pid)] = name, process
        self._tell(News(living={name: process}))
        # Only now that the child is written down, and told of.
        os.write(go, b"\n")
        os.close(held)
        os.close(go)

    def _fork(self, command: StartOrder, held: int, go: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setpgrp()
            os.close(go)
            # Whoever else holds these makes a nursery that has died look alive.
            for socket in (self._listener, self._master):
                if socket is not None:
                    socket.close()
            for fd in self._children:
                os.close(fd)
            if not os.read(held, 1):  # the nursery was killed: nobody knows of this child
                os._exit(0)
            os.close(held)
            output = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            code = launch.run(command.settings)
        except BaseException:  # noqa: BLE001  (its log is all that is left of this child)
            traceback.print_exc()
        finally:
            leave(code)

    def _spawn(self, command: StartOrder, held: int) -> int:
        """A fresh process: slower, but right where a fork would not be. It too waits for its start."""
        text = msgspec.json.encode(command.settings).decode()
        waiting = ["/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "elasticflow"]
        with open(command.log, "ab") as output:
            process = subprocess.Popen(
                [*waiting, sys.executable, "-m", launch.__name__, text],
                stdin=held,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        process.returncode = 0  # the nursery waits for it itself
        return process.pid

    def _bury(self, fd: int) -> None:
        name, process = self._children.pop(fd)
        os.close(fd)
        with contextlib.suppress(ProcessLookupError):  # it had not begun
            os.killpg(process.pid, signal.SIGKILL)  # before its number can be another's
        _, status = os.waitpid(process.pid, 0)
        self._ended[name] = os.waitstatus_to_exitcode(status)
        self._tell(News(ended={name: self._ended[name]}))

    def _end_all(self) -> None:
        for _, process in self._children.values():
            os.kill(process.pid, signal.SIGKILL)
        for fd in list(self._children):
            self._bury(fd)


def main(argv: Sequence[str]) -> None:
    """See the module's docstring."""
    listener = sockets.socket(fileno=int(argv[0]))
    listener.set_inheritable(False)  # who else held it would make a dead nursery look alive
    if not os.read(0, 1):  # as for a child: it begins once it is known
        return
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with contextlib.suppress(OSError):  # what ps and top call it
        Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
    environment = dict(os.environ)  # before the imports change it
    preload(argv[3:])
    if names := thread_names():
        print(
            f"what the program imports has started threads ({', '.join(names)}), which a fork would lack: "
            "each member imports it for itself, and begins as much later",
            file=sys.stderr,
            flush=True,
        )
    gc.freeze()  # what was imported stays; children need not look at it, nor copy its pages for that
    gc.enable()
    Nursery(listener, Path(argv[1]), float(argv[2]), environment).run()
    os._exit(0)  # tidying up after a framework takes half a second, and there is nothing to save


if __name__ == "__main__":
    main(sys.argv[1:])
