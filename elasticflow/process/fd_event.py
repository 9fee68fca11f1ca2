"""An event that a poller can wait for, among sockets."""

from __future__ import annotations

import os


class FdEvent:
    """As ``threading.Event``: ``fd`` is readable while it is set. Any thread may set it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        try:  # not ``suppress``, which takes longer, and this is asked at each turn of a loop
            os.eventfd_read(self.fd)
        except BlockingIOError:  # it is not set
            pass

    def close(self) -> None:
        """May be called twice: its number may be another file's from now on."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
