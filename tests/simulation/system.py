"""What the product's modules have of the system, and get from a world instead while one is simulated.

The product knows nothing of this: wherever a module of it names ``time``, ``threading``, ``zmq``, ``os`` or
the like, that name stands for a simulated one here. Only what waits, is chance, or reaches beyond the process
is simulated; all else is handed on to the real module.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import queue
import secrets
import select
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any

import zmq
from greenlet import GreenletExit

from .sockets import SimContext, SimPoller, SimTracker, Way
from .threads import Hub, SimEvent, SimLock, SimQueue, SimThread, Waitable

if TYPE_CHECKING:
    from .world import World

PACKAGES = ("elasticflow", "elasticflow_ps")
FIRST_FD = 1_000_000
"""Simulated descriptors are numbered from here on."""
BEGUN_AT = 1_700_000_000.0
"""Every history begins then, since 1970."""


_NOTHING = BlockingIOError(errno.EAGAIN, "nothing")


class EventFd(Waitable):
    """What ``os.eventfd`` makes."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = 0
        """What it was written, and nobody has read."""


class PidFd(Waitable):
    """What ``os.pidfd_open`` makes: readable once the process has ended."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self._process = process

    @property
    def pending(self) -> bool:
        return not self._process.alive


class Module:
    """Stands for a module: what is not simulated is the real one's."""

    _real: ModuleType

    def __init__(self, system: System) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        setattr(self, name, value)
        return value


class Time(Module):
    _real = time

    def monotonic(self) -> float:
        hub = self._system.hub
        task = hub.running
        return hub.now_s if task is None else hub.now_s + task.process.skew_s

    def time(self) -> float:
        hub = self._system.hub
        return BEGUN_AT + hub.now_s + (hub.running.process.wall_s if hub.running else 0.0)

    def sleep(self, seconds: float) -> None:
        self._system.hub.sleep(seconds)


class Threading(Module):
    _real = threading

    def Thread(self, target: Callable[..., Any], name: str = "", **others: Any) -> SimThread:
        return SimThread(self._system.hub, target, name, **others)

    def Event(self) -> SimEvent:
        return SimEvent(self._system.hub)

    def Lock(self) -> SimLock:
        return SimLock(self._system.hub)


class Zmq(Module):
    """Constants are plain numbers, which are quicker."""

    _real = zmq
    MessageTracker = SimTracker

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if isinstance(value, int):
            value = int(value)
            setattr(self, name, value)
        return value

    def Context(self) -> SimContext:
        return SimContext(self._system.world.network)

    def Poller(self) -> SimPoller:
        return SimPoller(self._system.hub, self._system.files)


class Os(Module):
    """eventfd, processes, and the acts on files that take time, fail, and are moments to die in."""

    _real = os

    def eventfd(self, value: int, flags: int = 0) -> int:
        return self._system.new_file(EventFd())

    def eventfd_write(self, fd: int, value: int) -> None:
        hub = self._system.hub
        hub.point()
        found = self._system.file(fd)
        assert isinstance(found, EventFd)
        found.pending += value
        found.wake(hub)

    def eventfd_read(self, fd: int) -> int:
        self._system.hub.point()
        found = self._system.file(fd)
        assert isinstance(found, EventFd)
        if not found.pending:
            raise _NOTHING.with_traceback(None)
        value, found.pending = found.pending, 0
        return value

    def close(self, fd: int) -> None:
        self._system.files.pop(fd, None)
        if fd < FIRST_FD:
            os.close(fd)

    def getpid(self) -> int:
        return self._system.hub.process.pid

    def pidfd_open(self, pid: int) -> int:
        fd = os.open(os.devnull, os.O_RDONLY)  # a real one, since it may be closed when the world is gone
        self._system.files[fd] = PidFd(self._system.world.process(pid))
        return fd

    def _exit(self, code: int) -> None:
        hub = self._system.hub
        hub.point()
        hub.process.exit(code)
        raise GreenletExit

    def stat(self, path: Any, **others: Any) -> os.stat_result:
        return os.stat(self._system.real_path(path), **others)

    def open(self, path: Any, flags: int, *others: Any) -> int:
        return os.open(self._system.real_path(path), flags, *others)

    def fsync(self, fd: int) -> None:
        if self._system.hub.running is None:  # who makes the folder, before there are processes
            return
        disk = self._system.world.disk
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._system.hub.point()
            disk.folder_written(os.readlink(f"/proc/self/fd/{fd}"))
        else:
            disk.write()
            disk.written(fd)

    def link(self, source: Any, target: Any) -> None:
        disk = self._system.world.disk
        disk.act(f"link {os.path.basename(target)}")
        os.link(source, target)
        disk.named(str(target))

    def mkdir(self, path: Any, *others: Any) -> None:
        os.mkdir(path, *others)
        self._system.world.disk.named(str(path))

    def unlink(self, path: Any) -> None:
        self._system.hub.point()
        os.unlink(path)

    def listdir(self, path: Any) -> list[str]:
        self._system.world.disk.look()
        return os.listdir(path)


class Select(Module):
    """``select.poll``, for descriptors of processes."""

    _real = select

    def poll(self) -> SimPoller:
        return SimPoller(self._system.hub, self._system.files)


class Connection:
    """A connection of this process by its descriptor."""

    def __init__(self, system: System, fileno: int) -> None:
        self._system, self._fd = system, fileno

    def _ways(self) -> list[Way]:
        network, process = self._system.world.network, self._system.hub.process
        here = [listener for listener in network.listening.values() if listener.process is process]
        own = [way for listener in here for way in listener.ways.values() if way.fd == self._fd]
        begun = network.begun.get(self._fd)
        return own if begun is None else [*own, begun]

    def getpeername(self) -> tuple[str, int]:
        for way in self._ways():
            if way.dealer is not None:
                return way.dealer.process.host, self._fd
        raise OSError(errno.ENOTCONN, "is not connected")

    def getsockname(self) -> tuple[str, int]:
        return self._system.hub.process.host, self._fd

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """What it may hold is not simulated."""

    def shutdown(self, how: int) -> None:
        for way in self._ways():
            way.shut(self._fd)

    def detach(self) -> None:
        pass


class Socket(Module):
    """Of the system's own sockets those of connections, by their descriptors."""

    _real = socket

    def socket(self, family: int, kind: int, protocol: int, fileno: int) -> Connection:
        return Connection(self._system, fileno)

    def gethostname(self) -> str:
        return self._system.hub.process.host


class Secrets(Module):
    """Chance that follows from the seed."""

    _real = secrets

    def token_bytes(self, num_bytes: int) -> bytes:
        return self._system.hub.rng.randbytes(num_bytes)

    def token_hex(self, num_bytes: int) -> str:
        return self.token_bytes(num_bytes).hex()


class Gc(Module):
    _real = gc

    def freeze(self) -> None:
        pass


class Traceback(Module):
    _real = traceback

    def print_exc(self) -> None:
        """A worker ends by an error."""
        self._system.world.failed(sys.exc_info()[1])


class Done:
    """A ``Future`` that is done."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class AtOnce:
    """``ThreadPoolExecutor`` without threads."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def submit(self, act: Callable[..., Any], *arguments: Any) -> Done:
        return Done(act(*arguments))

    def shutdown(self, **others: Any) -> None:
        pass


class System:
    """Stands between the product and the system; ``world`` is the one that is simulated just now."""

    def __init__(self) -> None:
        self.world: World
        self.hub: Hub
        """The world's."""
        self.files: dict[int, Any] = {}
        self._next_fd = FIRST_FD
        self.num_closed = 0
        """Worlds that are gone."""
        made = (Time, Threading, Zmq, Os, Select, Socket, Secrets, Gc, Traceback)
        self._instead: dict[int, Any] = {id(kind._real): kind(self) for kind in made}
        self._instead[id(queue.SimpleQueue)] = lambda: SimQueue(self.hub)
        self._instead[id(ThreadPoolExecutor)] = AtOnce

    def module(self, real: ModuleType) -> Any:
        """What stands for it."""
        return self._instead[id(real)]

    def new_file(self, file: Any) -> int:
        self._next_fd += 1
        self.files[self._next_fd] = file
        return self._next_fd

    def file(self, fd: int) -> Any:
        if fd not in self.files:
            raise OSError(errno.EBADF, "is closed", str(fd))
        return self.files[fd]

    def real_path(self, path: Any) -> Any:
        """``/proc/PID/...`` of a simulated process. Raises FileNotFoundError if that has ended."""
        if not isinstance(path, str) or not path.startswith("/proc/1"):
            return path
        pid, _, rest = path.removeprefix("/proc/").partition("/")
        self.world.process(int(pid))
        return f"/proc/{os.getpid()}/{rest}"

    def _print(self, *words: Any, **others: Any) -> None:
        hub = self.hub
        hub.note(f"{hub.process.name}: {' '.join(map(str, words))}")

    @contextlib.contextmanager
    def installed(self, others: dict[tuple[str, str], Any]) -> Iterator[None]:
        """Within it the product's modules have these names instead. others: by (module, name)."""
        before: list[tuple[ModuleType, str, Any]] = []
        missing = object()

        def put(module: ModuleType, name: str, value: Any) -> None:
            before.append((module, name, vars(module).get(name, missing)))
            setattr(module, name, value)

        try:
            for key, module in list(sys.modules.items()):
                if key.partition(".")[0] not in PACKAGES or module is None:
                    continue
                for name, value in list(vars(module).items()):
                    if id(value) in self._instead:
                        put(module, name, self._instead[id(value)])
                put(module, "print", self._print)
            for (key, name), value in others.items():
                put(sys.modules[key], name, value)
            yield
        finally:
            for module, name, value in reversed(before):
                if value is missing:
                    delattr(module, name)
                else:
                    setattr(module, name, value)
