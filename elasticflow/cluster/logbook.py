"""The logs of a run, one a process, wherever they are kept."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from elasticflow.errors import RunError
from elasticflow.run.folder import RunDir

CHUNK = 1 << 20
_GONE = (errno.ENOENT, errno.ESTALE)  # the latter is NFS's word for a file that was removed elsewhere


class LogBook(ABC):
    """Remembers what was read of each log. Raises RunError for what cannot be read."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of the processes that have a log by now, in the order of ``by_number``."""

    @abstractmethod
    def new(self, name: str, lines: int | None = None) -> Iterator[bytes]:
        """What is new in a log since the last call, in pieces; at first all, or its last so many lines."""

    def close(self) -> None:  # noqa: B027  (there may be nothing to tidy up)
        """To be called at the end."""


def log_book_of(run: RunDir) -> LogBook:
    """The logs of this run. Raises RunError if there can be none."""
    from elasticflow.cluster.contract import load_backend

    if isinstance(run.path, Path):
        return LogFolder(run.path)
    host = run.host()
    if host is None:
        raise RunError(f"{run.path}: there is no {run.job.name}, so nobody knows where its logs are.")
    return load_backend(host.backend).log_book(str(run.path))


def by_number(name: str) -> list[tuple[int, str]]:
    """A key to sort by: worker-10 comes after worker-9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


class LogFolder(LogBook):
    """Files in the run's folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._folder = run_dir, run_dir / "logs"
        self._logs: dict[str, LogFile] = {}

    def names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                found = [entry.name for entry in entries if entry.name.endswith(".log") and entry.is_file()]
        except OSError as error:
            raise RunError(
                f"{self._run_dir}: is not the folder of a run, or its logs cannot be read: "
                f"{self._folder}: {error.strerror}."
            ) from error
        return sorted((name.removesuffix(".log") for name in found), key=by_number)

    def new(self, name: str, lines: int | None = None) -> Iterator[bytes]:
        log = self._logs.setdefault(name, LogFile(self._folder / f"{name}.log"))
        return log.new(lines)


class LogFile:
    """What is new in one file. It is opened at each look: so a network file system asks its server.

    offset: what is before it has been read elsewhere; None: nothing has.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self.path, self._offset = path, offset or 0
        self._inode = -1
        self._is_first = offset is None

    def new(self, lines: int | None = None) -> Iterator[bytes]:
        """See LogBook."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if self._is_first and lines is not None:
                    self._offset = _last_lines(file.fileno(), stat.st_size, lines)
                elif self._inode not in (-1, stat.st_ino) or stat.st_size < self._offset:
                    self._offset = 0  # another file of that name, or it was emptied
                self._inode, self._is_first = stat.st_ino, False
                while piece := os.pread(file.fileno(), CHUNK, self._offset):
                    self._offset += len(piece)
                    yield piece
        except OSError as error:
            if error.errno not in _GONE:
                raise RunError(f"{self.path}: cannot be read: {error.strerror}.") from error


def _last_lines(descriptor: int, size: int, lines: int) -> int:
    """Where the last so many lines begin; a half line at the end counts as one."""
    if not lines:
        return size
    wanted = lines + (size > 0 and os.pread(descriptor, 1, size - 1) == b"\n")
    start = size
    while start:
        begin = max(0, start - CHUNK)
        block = os.pread(descriptor, start - begin, begin)
        place = len(block)
        while wanted and (place := block.rfind(b"\n", 0, place)) >= 0:
            wanted -= 1
        if not wanted:
            return begin + place + 1
        start = begin
    return 0
