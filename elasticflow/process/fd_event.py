"""An event that a poller can wait for, among sockets."""

from __future__ import annotations

import os


class FdEvent:
    """As ``threading.Event``: ``fd`` is readable while it is set. Any thread may set it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._may_be_set = False

    def set(self) -> None:
        self._may_be_set = True  # before: who waits for it may clear it at once
        os.eventfd_write(self.fd, 1)
        self._may_be_set = True  # after: it may have been cleared since, and that before this was written

    def clear(self) -> None:
        if not self._may_be_set:
            return  # as it is at nearly every turn of a loop
        self._may_be_set = False
        try:  # not ``suppress``, which takes longer
            os.eventfd_read(self.fd)
        except BlockingIOError:  # it is not set
            pass

    def close(self) -> None:
        """May be called twice: its number may be another file's from now on."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
