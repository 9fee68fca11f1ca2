"""Processes of this machine that are no children of the one that looks, and files that name them."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from elasticflow.process.clocks import process_began_ticks
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import publish

END_S = 10.0
"""How long a killed process may take to end: longer than any does, but those stuck in the kernel."""
_GONE = (errno.ESRCH, errno.ENOENT, errno.EINVAL)  # EINVAL: the number is that of a thread by now


class Process(msgspec.Struct, frozen=True):
    """A process, and no other that gets its number later. started: in the kernel's clock ticks."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now. Raises OSError if there is none."""
        started = process_began_ticks(pid)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(pid, started, boot)

    def watch(self) -> int | None:
        """A descriptor that is readable once the process has ended; None if it has ended already."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return None
        with contextlib.suppress(OSError):
            # The descriptor was there first: if the number still is that of this process, it means this one.
            if Process.of(self.pid) == self and not has_ended(descriptor):
                return descriptor
        os.close(descriptor)
        return None

    def wait(self) -> None:
        """Until it has ended."""
        watched = self.watch()
        if watched is not None:
            has_ended(watched, None)
            os.close(watched)

    def kill(self, *numbers: int) -> None:
        """Sends it signals, by default SIGKILL; does nothing if it has ended."""
        watched = self.watch()
        if watched is not None:
            for number in numbers or (signal.SIGKILL,):
                _send(watched, number)
            os.close(watched)

    def record(self, path: Path) -> None:
        """Writes the process into a file, for those who come after the one who started it."""
        with contextlib.suppress(OSError):  # a full disk is no reason not to start it
            publish(path, Record(self, _home(path)), durable=False)  # no process lives on after a power cut


class Record(msgspec.Struct, frozen=True):
    """A process, as a file names it. home: its folder, as the kernel knows it: no copy has the same."""

    process: Process
    home: str


def _home(path: Path) -> str:
    found = path.parent.stat()
    return f"{found.st_dev}:{found.st_ino}"


def recorded(path: Path) -> Process | None:
    """The process that a file names; None if there is no such file, it cannot be read, or is a copy's.

    A copy of a run's folder is another run: what its files name are the processes of the original.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        record = from_json(path.read_bytes(), Record)
        return record.process if record.home == _home(path) else None
    return None


def recorded_in(folder: Path) -> dict[str, Process | None]:
    """The same of all files in a folder, by their names."""
    return {path.name: recorded(path) for path in folder.glob("[!.]*")}


def _send(watched: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(watched, number)


def has_ended(watched: int, timeout_s: float | None = 0.0) -> bool:
    """Whether the process of a descriptor of ``Process.watch`` has ended, or does in time. None: at all."""
    poller = select.poll()
    poller.register(watched, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


def end(processes: Iterable[Process], *numbers: int) -> None:
    """Sends processes signals, by default SIGKILL, and waits until they have ended."""
    watched = [fd for process in processes if (fd := process.watch()) is not None]
    for fd in watched:
        for number in numbers or (signal.SIGKILL,):
            _send(fd, number)
    deadline = time.monotonic() + END_S
    for fd in watched:
        has_ended(fd, max(0.0, deadline - time.monotonic()))
        os.close(fd)
