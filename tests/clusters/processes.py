"""What the clusters for the tests know of this machine: its processes and its free ports. Linux only."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class ClusterError(RuntimeError):
    """The cluster could not do what it was asked; the text ends with what its daemons said."""


def wait(
    is_so: Callable[[], bool],
    what: str,
    timeout_s: float,
    story: Callable[[], str],
    *,
    every_s: float = 0.05,
) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end:
            raise ClusterError(f"waited {timeout_s:g} s until {what}, in vain. {story()}")
        time.sleep(every_s)


def tail(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:])


_held: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to outgoing connections. They stay free until they are used.

    Each is held as long as this process lives: nobody else is given it, and daemons, which all set
    SO_REUSEADDR, can listen there, as the holder does not.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(12_000, 32_000)
        holder = socket.socket()
        try:
            holder.bind(("", port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder)
        found.append(port)
    return found


def pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that has gone meanwhile."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def environ(pid: int) -> set[str]:
    return set(_read(pid, "environ").decode(errors="replace").split("\0"))


def command_line(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode(errors="replace").split("\0")


def stat(pid: int) -> list[str]:
    """State, parent and further; the program's name before may itself hold spaces and brackets."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def is_program(pid: int, program: str) -> bool:
    return Path(f"/proc/{pid}/comm").exists() and _read(pid, "comm").decode().strip() == program


def is_alive(pid: int) -> bool:
    """Also where its first thread has ended, but not all of them."""
    fields = stat(pid)
    with contextlib.suppress(OSError):
        return bool(fields) and (fields[0] not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1)
    return False


def parent_of(pid: int) -> int:
    """Of a process that is there."""
    return int(stat(pid)[1])


def with_descendants(roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in pids():
        if fields := stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def own_line() -> set[int]:
    """This process and those above it: never to be killed, whatever their environment."""
    line, pid = set(), os.getpid()
    while pid > 1:
        line.add(pid)
        fields = stat(pid)
        pid = int(fields[1]) if fields else 0
    return line
