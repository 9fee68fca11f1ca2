"""The parameter servers that a worker carries under ``strategy: all_reduce``: processes that die with it.

The master says which (``Carry``), and is told when one ends (``ServerEnded``). They are servers as any
others: what is new is where they live. A worker has threads and connections, and cannot fork a clean process;
so it begins by forking a *porter*, which does nothing else:

    worker ── PorterOrder ──> porter ── forks, kills ──> server-3, server-7
           <── PorterNews ───        <── their ends ────

The kernel ends the porter with the worker, and the servers with the porter, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket as sockets
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from elasticflow.cluster.member import EXIT_ABANDONED, MasterLink
from elasticflow.process.ending import how_it_ended
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.guard import guarded_thread
from elasticflow.process.parent import die_with_parent
from elasticflow.run.settings import MemberSettings
from elasticflow.wire.messages import ServerEnded, ToMaster

PACKET = 1 << 12
"""Bytes of the longest packet there could be."""


class PorterOrder(msgspec.Struct, frozen=True):
    """Start this server, or kill it. No name is used twice."""

    name: str
    kill: bool = False


class PorterNews(msgspec.Struct, frozen=True):
    """A server has ended, with this exit status; negative: of the signal."""

    name: str
    status: int


class Porter(Protocol):
    """Whoever starts and ends servers beside a worker."""

    def start(self, name: str) -> None: ...

    def kill(self, name: str) -> None: ...

    def listen(self, ended: Callable[[str, bool, str], None]) -> None:
        """From now on each end is told: the name, whether it is an error of its own, and how it ended."""


class Carrying:
    """What one worker carries. name: the worker's."""

    def __init__(self, name: str, porter: Porter) -> None:
        self._name, self._porter = name, porter
        self._lock = threading.Lock()
        self._living: set[str] = set()
        self._ended: dict[str, ServerEnded] = {}
        """Of those that the last Carry named: said again if the next one does, too."""
        self._news = FdEvent()
        self._tell: Callable[[ToMaster], None] = lambda message: None

    def begin(self, tell: Callable[[ToMaster], None]) -> None:
        """tell: takes messages to the master."""
        self._tell = tell
        self._porter.listen(self._bury)

    def carry(self, servers: tuple[str, ...]) -> None:
        """The master's order: these, and no others. In the link's thread: it need not wait for a slice."""
        with self._lock:
            self._ended = {name: ended for name, ended in self._ended.items() if name in servers}
            for name in servers:
                if name in self._ended:
                    self._tell(self._ended[name])
                elif name not in self._living:
                    self._living.add(name)
                    self._porter.start(name)
            for name in sorted(self._living.difference(servers)):
                self._porter.kill(name)

    def _bury(self, name: str, failed: bool, text: str) -> None:
        with self._lock:
            self._living.discard(name)
            self._ended[name] = ServerEnded(name=self._name, member=name, failed=failed, text=text)
            self._tell(self._ended[name])
            self._news.set()

    def wait(self, link: MasterLink) -> None:
        """Until nothing is carried: a worker that has left stays for those who go on with its places."""
        poller = zmq.Poller()
        poller.register(link.wake_fd, zmq.POLLIN)
        poller.register(self._news.fd, zmq.POLLIN)
        while self._living:
            poller.poll()
            self._news.clear()
            link.received()  # it answers who asks whether it is still there


class PorterProcess:
    """See the module's docstring. Forks: to be called before there are threads and connections.

    live: a server's whole life in this process; returns its exit code.
    """

    def __init__(self, settings: MemberSettings, live: Callable[[MemberSettings], int]) -> None:
        self._socket, there = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        parent = os.getpid()
        sys.stdout.flush()
        if os.fork() == 0:
            with _last_words():
                die_with_parent(parent)
                self._socket.close()
                _Carriage(there, settings, live).run()
        there.close()

    def start(self, name: str) -> None:
        self._say(PorterOrder(name))

    def kill(self, name: str) -> None:
        self._say(PorterOrder(name, kill=True))

    def _say(self, order: PorterOrder) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who listens finds out
            self._socket.send(msgspec.json.encode(order))

    def listen(self, ended: Callable[[str, bool, str], None]) -> None:
        def read() -> None:
            while packet := self._heard():
                news = msgspec.json.decode(packet, type=PorterNews)
                ended(news.name, news.status > 0 and news.status != EXIT_ABANDONED, how_it_ended(news.status))
            os.kill(
                os.getpid(), signal.SIGKILL
            )  # the servers are gone with the porter, and so is this worker

        guarded_thread(read, "porter").start()

    def _heard(self) -> bytes:
        with contextlib.suppress(ConnectionResetError):
            return self._socket.recv(PACKET)
        return b""


class _Carriage:
    """The porter's process."""

    def __init__(
        self, socket: sockets.socket, settings: MemberSettings, live: Callable[[MemberSettings], int]
    ) -> None:
        self._socket, self._settings, self._live = socket, settings, live
        self._servers: dict[int, tuple[str, int]] = {}
        """By the descriptor that is readable once it has ended: name and process number."""
        for number in (signal.SIGTERM, signal.SIGINT):  # a place that is taken lasts until the worker's ends
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Until the worker's end."""
        while True:
            poller = select.poll()
            for fd in (self._socket.fileno(), *self._servers):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd in self._servers:
                    self._bury(fd)
                elif packet := self._socket.recv(PACKET):
                    self._obey(msgspec.json.decode(packet, type=PorterOrder))
                else:
                    return

    def _obey(self, order: PorterOrder) -> None:
        if not order.kill:
            return self._start(order.name)
        for name, pid in self._servers.values():
            if name == order.name:
                os.kill(pid, signal.SIGKILL)  # its number is its own: nobody but this process waits for it

    def _start(self, name: str) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with _last_words():
                die_with_parent(parent)
                self._socket.close()
                for fd in self._servers:
                    os.close(fd)
                self._log_to(name)
                settings = msgspec.structs.replace(self._settings, name=name, role="server", started_s=0.0)
                os._exit(self._live(settings))
        self._servers[os.pidfd_open(pid)] = name, pid

    def _log_to(self, name: str) -> None:
        """A log of its own, where logs lie beside each other; else that of the worker."""
        logs = Path(self._settings.run_dir, "logs")
        if self._settings.backend == "local" and logs.is_dir():
            output = os.open(logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)

    def _bury(self, fd: int) -> None:
        name, pid = self._servers.pop(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        news = PorterNews(name, os.waitstatus_to_exitcode(status))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker ends, and so will this
            self._socket.send(msgspec.json.encode(news))


class _last_words(contextlib.AbstractContextManager[None]):  # noqa: N801
    """Of a process that was forked: it ends here, whatever happens."""

    def __exit__(self, *exception: object) -> None:
        if isinstance(exception[1], BaseException):
            traceback.print_exception(exception[1])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if exception[1] else 0)
