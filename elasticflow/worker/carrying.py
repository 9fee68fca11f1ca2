"""The processes beside a worker, that die with it: servers that it carries, and who tries slices for it.

Servers live beside a worker under ``strategy: all_reduce``. The master says which (``Carry``), and is told
when one ends (``ServerEnded``). They are servers as any others. A worker has threads and connections, and
cannot fork a clean process; so it begins by forking a *porter*, which does nothing else (``process.forker``).
The kernel ends the porter with the worker, and the servers with the porter, however that ends.

A *nursery* is what a worker tries slices with that may be deadly (``elasticflow.worker.trial``). Where the
worker itself was forked from a process that has imported the framework, the porter has it, too, and no
thread; so such a worker has a porter under any strategy.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from elasticflow.cluster.member import EXIT_ABANDONED, MasterLink
from elasticflow.frameworks import FRAMEWORKS
from elasticflow.process.ending import how_it_ended
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.forker import Forker, ForkOrder, ends_here, forker_sockets, heard_end, send_order
from elasticflow.process.guard import guarded_thread
from elasticflow.process.parent import die_with_parent
from elasticflow.process.stacks import num_threads
from elasticflow.run.settings import MemberSettings
from elasticflow.wire.messages import Assignment, Beat, Leaving, ServerEnded, ToMaster
from elasticflow.worker.trial import Nurse, NurseryProcess

NURSERY = "nursery"
"""The kind of a porter's child that is one; all others are servers."""


class Porter(Protocol):
    """Whoever starts and ends servers beside a worker. nurse: begins a nursery; None: it cannot."""

    @property
    def nurse(self) -> Nurse | None: ...

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

    @property
    def nurse(self) -> Nurse | None:
        """See ``Porter``."""
        return self._porter.nurse

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

    def wait(self, link: MasterLink, last_word: Leaving | None) -> None:
        """Until nothing is carried: who has left, or failed, stays for those who go on with its places.

        last_word: that it has; None: it never took part. Another master, which may not know it, is told.
        """
        poller = zmq.Poller()
        poller.register(link.wake_fd, zmq.POLLIN)
        poller.register(self._news.fd, zmq.POLLIN)
        while self._living:
            poller.poll()
            self._news.clear()
            told = link.received()  # it answers who asks whether it is still there
            if last_word and any(isinstance(message, (Beat, Assignment)) for message in told):
                link.send(last_word)


def forks_with_framework() -> bool:
    """Whether what is forked from this process has the program's framework, and may use it."""
    return num_threads() == 1 and any(name in sys.modules for name in FRAMEWORKS)


class PorterProcess:
    """See the module's docstring. Forks: to be called before there are threads and connections.

    live: a server's whole life in this process; returns its exit code.
    """

    def __init__(self, settings: MemberSettings, live: Callable[[MemberSettings], int]) -> None:
        self._socket, there = forker_sockets()
        self._settings, self._live = settings, live
        self._numbers = count(1)
        self._nurseries: dict[str, Future[int]] = {}
        """By name: with what status it ends."""
        self._is_warm = forks_with_framework()
        parent = os.getpid()
        sys.stdout.flush()
        if os.fork() == 0:
            with ends_here():
                die_with_parent(parent)
                self._socket.close()
                for number in (signal.SIGTERM, signal.SIGINT):  # it ends with the worker, not before
                    signal.signal(number, signal.SIG_IGN)
                Forker(there, self._child).run()
        there.close()

    def start(self, name: str) -> None:
        send_order(self._socket, ForkOrder(name))

    def kill(self, name: str) -> None:
        send_order(self._socket, ForkOrder(name, kill=True))

    @property
    def nurse(self) -> Nurse | None:
        """Only of a porter that need not import the framework first."""
        return self._nurse if self._is_warm else None

    def _nurse(self, socket_fd: int, state_fd: int) -> NurseryProcess:
        name = f"nursery-{next(self._numbers)}"
        ended = self._nurseries[name] = Future[int]()
        send_order(self._socket, ForkOrder(name, NURSERY), socket_fd, state_fd)
        return _CarriedNursery(lambda: self.kill(name), ended)

    def listen(self, ended: Callable[[str, bool, str], None]) -> None:
        def read() -> None:
            while end := heard_end(self._socket):
                if nursery := self._nurseries.pop(end.name, None):
                    nursery.set_result(end.status)
                    continue
                ended(end.name, end.status > 0 and end.status != EXIT_ABANDONED, how_it_ended(end.status))
            os.kill(
                os.getpid(), signal.SIGKILL
            )  # the servers are gone with the porter, and so is this worker

        guarded_thread(read, "porter").start()

    # --- the porter's children -------------------------------------------------------------------

    def _child(self, order: ForkOrder, fds: list[int]) -> None:
        if order.kind == NURSERY:
            for number in (signal.SIGTERM, signal.SIGINT):  # as in any process that a program runs in
                signal.signal(number, signal.SIG_DFL)
            from elasticflow.worker.tried import nurse  # here: only who has the framework gets here

            nurse(*fds)
        self._log_to(order.name)
        settings = msgspec.structs.replace(self._settings, name=order.name, role="server", started_s=0.0)
        os._exit(self._live(settings))

    def _log_to(self, name: str) -> None:
        """A log of its own, where logs lie beside each other; else that of the worker."""
        logs = Path(self._settings.run_dir, "logs")
        if self._settings.backend == "local" and logs.is_dir():
            output = os.open(logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)


class _CarriedNursery:
    """A ``NurseryProcess`` that the porter has forked. ended: with what status."""

    def __init__(self, kill: Callable[[], None], ended: Future[int]) -> None:
        self.kill, self._ended = kill, ended

    def wait(self) -> int:
        return self._ended.result()
