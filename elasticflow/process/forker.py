"""A process that does nothing but fork others, of what it has imported, and wait for their ends.

    owner  ── ForkOrder ──> forker ── forks, kills ──> its children
           <── ForkEnd ───         <── their ends ────

Each packet is one message, of a pair of sockets (``forker_sockets``). The forker ends when its owner does, or
closes its end; whoever runs one has the kernel end it with the owner, and its children with it
(``die_with_parent``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket as sockets
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.process.ending import leave
from elasticflow.process.parent import die_with_parent

PACKET = 1 << 12
"""Bytes of the longest packet there could be."""
MOST_FDS = 2


class ForkOrder(msgspec.Struct, frozen=True):
    """Fork this child, or kill it. No name is used twice. kind: what it is to be, where there are several."""

    name: str
    kind: str = ""
    kill: bool = False


class ForkEnd(msgspec.Struct, frozen=True):
    """A child has ended, with this exit status; negative: of the signal."""

    name: str
    status: int


READY = ForkEnd("", 0)
"""What a forker says first where its owner waits until it has imported what children need."""


def forker_sockets() -> tuple[sockets.socket, sockets.socket]:
    """The owner's end, and the forker's."""
    return sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)


def send_order(socket: sockets.socket, order: ForkOrder, *fds: int) -> None:
    """fds: descriptors for the child. That the forker has ended is seen by whoever listens."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sockets.send_fds(socket, [msgspec.json.encode(order)], fds)


def heard_end(socket: sockets.socket) -> ForkEnd | None:
    """Waits for one; None: the forker has ended. Raises TimeoutError where the socket has a limit."""
    packet = b""
    with contextlib.suppress(ConnectionResetError):
        packet = socket.recv(PACKET)
    return from_json(packet, ForkEnd) if packet else None


class Forker:
    """In its process, which must have one thread alone. live: a child's whole life, with its descriptors."""

    def __init__(self, socket: sockets.socket, live: Callable[[ForkOrder, list[int]], None]) -> None:
        self._socket, self._live = socket, live
        self._children: dict[int, tuple[str, int]] = {}
        """By the descriptor that is readable once it has ended: name and process number."""

    def run(self, *said: ForkEnd) -> None:
        """Until the owner's end. said: to the owner, before all else."""
        for word in said:
            self._say(word)
        while True:
            poller = select.poll()
            for fd in (self._socket.fileno(), *self._children):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd in self._children:
                    self._bury(fd)
                    continue
                packet, fds, *_ = sockets.recv_fds(self._socket, PACKET, MOST_FDS)
                if not packet:
                    return
                self._obey(from_json(packet, ForkOrder), fds)
                for each in fds:
                    os.close(each)

    def _obey(self, order: ForkOrder, fds: list[int]) -> None:
        if not order.kill:
            return self._fork(order, fds)
        for name, pid in self._children.values():
            if name == order.name:
                os.kill(pid, signal.SIGKILL)  # its number is its own: nobody but this process waits for it

    def _fork(self, order: ForkOrder, fds: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory: this one goes on
            print(f"{order.name} cannot be forked: {error}", file=sys.stderr, flush=True)
            return self._say(ForkEnd(order.name, os.EX_OSERR))
        if pid == 0:
            with ends_here():
                die_with_parent(parent)
                self._socket.close()
                for fd in self._children:
                    os.close(fd)
                for fd in fds:
                    os.set_inheritable(fd, False)  # who else held them would make a dead child look alive
                self._live(order, fds)
        self._children[os.pidfd_open(pid)] = order.name, pid

    def _bury(self, fd: int) -> None:
        name, pid = self._children.pop(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        self._say(ForkEnd(name, os.waitstatus_to_exitcode(status)))

    def _say(self, end: ForkEnd) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the owner ends, and so will this
            self._socket.send(msgspec.json.encode(end))


class ends_here(contextlib.AbstractContextManager[None]):
    """A process ends with this block, whatever happens in it: tidying up after a framework takes long.

    Its log is all that is left of it, and has the traceback if there is one.
    """

    def __exit__(self, *exception: object) -> NoReturn:
        try:
            if isinstance(exception[1], BaseException):
                traceback.print_exception(exception[1])
        finally:
            leave(1 if exception[1] else 0)
