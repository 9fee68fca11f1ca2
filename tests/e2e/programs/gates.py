"""Places in a program at which a test holds whoever comes there, for as long as it likes.

A gate is a Unix socket without a file, named after the run and the place. It is shut while the test
listens at it: who comes connects, and waits for the end of the connection. At a place where nobody
listens there is no gate. So a test needs no time to be right, and holds nobody once it is over.
"""

import os
import socket
import struct

MARK = "ELASTICFLOW_TEST_MARK"
"""Variable of the environment that all processes of a run inherit."""
GATES = "ELASTICFLOW_TEST_GATES"
"""Another: a folder for gates that are files. Sockets without a file are known in their own network alone."""


def pass_gate(place):
    """In the program: waits here while the place's gate is shut."""
    if mark := os.environ.get(MARK):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(_address(mark, place, os.environ.get(GATES)))
                connection.recv(1)
            except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
                pass  # it is open, or has been opened before the test saw this process


class Gate:
    """In the test: shuts a gate."""

    def __init__(self, environment: dict[str, str], place: str) -> None:
        self._held: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._address = _address(environment[MARK], place, environment.get(GATES))
        self._socket.bind(self._address)
        self._socket.listen(64)

    def next_pid(self, timeout_s: float) -> int:
        """Waits for the next process that is held here, and returns its number."""
        self._socket.settimeout(timeout_s)
        self._held.append(self._socket.accept()[0])
        credentials = self._held[-1].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])

    def open(self) -> None:
        """Lets all go on, and whoever comes later pass."""
        for each in (self._socket, *self._held):
            each.close()
        if not self._address.startswith("\0"):
            os.unlink(self._address)


def _address(mark: str, place: str, folder: str | None) -> str:
    if folder:
        return f"{folder}/{place.replace('/', '-')}"
    return f"\0elasticflow {mark} {place}"
