"""How many may stand in the door of a listener: connections that have not proved themselves yet.

A connection takes a descriptor before anybody knows whose it is, and without descriptors no file can be
written and no member come in. So strangers may have a share of them. Who takes too many from one address is
hung up, and the kernel drops what comes from there for a while, the next time for longer; if all of the share
is taken it drops whatever comes, until some have gone. Members who are in are not concerned.
"""

from __future__ import annotations

import ctypes
import resource
import socket as sockets
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

SHARE = 4
"""Strangers may have one descriptor in so many; others are for files, memory that is lent, and members."""
OF_ONE = 4
"""One address may have one of these in so many."""
MOST_ROOM = 4096
BLOCK_S, LONGEST_BLOCK_S = 5.0, 300.0
"""So long nothing is taken from an address that had too many: the first time, and at most."""
MOST_BLOCKED = 100
"""Beyond so many addresses, nothing is taken from anybody."""
EVERYBODY = ""
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_SOURCE = 0x100000000 - 0x100000 + 12
"""Where a packet has the address that it is from: 12 bytes into its IP header."""


def room() -> int:
    """For strangers, by this process's limit of descriptors."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(most // SHARE, MOST_ROOM)) if most != resource.RLIM_INFINITY else MOST_ROOM


class Door:
    """Who stands in it, by descriptor. Pure: ``Router`` tells what happens, and does what follows."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._addresses: dict[int, str] = {}
        self._taken: Counter[str] = Counter()
        self._blocks: dict[str, tuple[float, float]] = {}
        """Until when, and how long it is all in all."""
        self._is_full = False

    def come(self, fd: int, address: str, now_s: float) -> bool:
        """A new connection; False: its address has too many, and this one is to be hung up."""
        self.go(fd)
        self._addresses[fd] = address
        self._taken[address] += 1
        if self._taken[address] <= self._room // OF_ONE:
            return True
        until_s, block_s = self._blocks.get(address, (now_s, BLOCK_S / 2))
        if until_s <= now_s:  # it is not kept away already: this is another time
            block_s = min(2 * block_s, LONGEST_BLOCK_S)
            self._blocks[address] = now_s + block_s, block_s
        return False

    def go(self, fd: int) -> None:
        """It has proved itself, or is closed."""
        address = self._addresses.pop(fd, None)
        if address is not None:
            self._taken[address] -= 1
            if not self._taken[address]:
                del self._taken[address]

    def holds(self, fd: int) -> bool:
        return fd in self._addresses

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is kept away, and nobody will be unless somebody comes."""
        return not self._blocks and not self._is_full and len(self._addresses) < self._room

    def blocked(self, now_s: float) -> frozenset[str]:
        """Whose connections are not to be taken: ``EVERYBODY``'s from when it is full until it is half empty.

        Who has kept the peace for as long again as they were kept away is forgotten.
        """
        self._is_full = len(self._addresses) >= (self._room // 2 if self._is_full else self._room)
        if not self._blocks and not self._is_full:
            return frozenset()
        self._blocks = {name: each for name, each in self._blocks.items() if now_s < each[0] + each[1]}
        kept_away = [name for name, (until_s, _) in self._blocks.items() if now_s < until_s]
        everybody = self._is_full or len(kept_away) > MOST_BLOCKED
        return frozenset([EVERYBODY] if everybody else kept_away)


@contextmanager
def borrowed(fd: int) -> Iterator[sockets.socket]:
    """Somebody else's socket, without another descriptor: there may be none left. Raises OSError."""
    socket = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, 0, fd)
    try:
        yield socket
    finally:
        socket.detach()


def shut_down(fd: int) -> None:
    """Ends somebody else's connection, if it is one still; who has it notices."""
    with suppress(OSError), borrowed(fd) as connection:
        connection.shutdown(sockets.SHUT_RDWR)


def block(listening: int, addresses: Collection[str]) -> None:
    """Has the kernel drop what comes for a listening socket from these addresses, and of no others.

    Who is dropped tries again, and waits. Connections that are made stay as they are. Raises OSError.
    Source: Linux's Documentation/networking/filter.rst.
    """
    with borrowed(listening) as socket:
        if not addresses:
            socket.setsockopt(sockets.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        code = b"".join(struct.pack("=HBBI", *each) for each in _filter(addresses))
        program = ctypes.create_string_buffer(code, len(code))
        argument = struct.pack("@HP", len(code) // 8, ctypes.addressof(program))
        socket.setsockopt(sockets.SOL_SOCKET, _SO_ATTACH_FILTER, argument)


def _filter(addresses: Collection[str]) -> list[tuple[int, int, int, int]]:
    """A program for the kernel's packet filter: (operation, jump if true, jump if false, value) each."""
    drop, keep = (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)
    if EVERYBODY in addresses:
        return [drop]
    numbers = [int.from_bytes(sockets.inet_aton(address), "big") for address in addresses]
    compare = [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    return [(0x20, 0, 0, _SOURCE), *compare, keep, drop]
