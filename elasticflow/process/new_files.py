"""Files and folders that come into being beside their place, and take it once they are whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticflow.process.locked_files import has_left

ENDING, OLD = ".partial", "old-"


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to, of the same name; what is there at the end takes the target's place.

    A folder's place only a folder takes. It lies in a hidden folder that is locked as long as somebody is at
    work there: what those left who were killed is removed, or put in its place if it only lacked that. Raises
    OSError.
    """
    _clear(target)
    folder, lock = _begun(target)
    try:
        new = folder / target.name
        yield new
        if not new.is_dir():
            with new.open("rb") as file:
                os.fsync(file.fileno())
        _put(new, target)
    finally:
        with contextlib.suppress(OSError):  # on a disk that became read-only: what was wrong first is told
            _finish(folder, target)
            shutil.rmtree(folder)
        os.close(lock)


def _begun(target: Path) -> tuple[Path, int]:
    while True:
        folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}{ENDING}")
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # as below
            continue
        try:
            is_taken = not _is_free(lock) or has_left(folder, lock)
        except OSError:  # a file system without such locks: nobody else removes it either
            is_taken = False
        if not is_taken:
            return folder, lock
        os.close(lock)  # whoever clears took it for one that was left


def _is_free(lock: int) -> bool:
    """Has it then. Raises OSError."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear(target: Path) -> None:
    """Removes what was left beside; what cannot be is in nobody's way."""
    left: list[Path] = []
    with contextlib.suppress(OSError):
        left = [
            path
            for path in target.parent.iterdir()
            if path.name.startswith(f".{target.name}.") and path.name.endswith(ENDING)
        ]
    for path in left:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _is_free(lock):
                    _finish(path, target)
                    shutil.rmtree(path)
            finally:
                os.close(lock)


def _finish(left: Path, target: Path) -> None:
    """Where nothing is in its place: who put that away has not come to the second act; no copy is left."""
    new = left / target.name
    if new.is_dir() and not target.exists() and any(left.glob(f"{OLD}*")):
        new.replace(target)


def _put(new: Path, target: Path) -> None:
    """A file is replaced by one act, a folder, which cannot be, by two: see ``_finish``."""
    while True:
        try:
            new.replace(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not new.is_dir():
                raise
        with contextlib.suppress(FileNotFoundError):  # of two that are at work here the other was faster
            target.rename(new.with_name(f"{OLD}{secrets.token_hex(4)}"))


class QuietFile(io.FileIO):
    """Takes all that is written. error: the first of them, after which nothing is written."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and not self.error:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return size


@contextlib.contextmanager
def writing(path: Path) -> Iterator[QuietFile]:
    """A file for a library to write to. Raises OSError at the end.

    Where a write fails, as on a full disk, PyTorch says something about positions, or aborts the process, and
    HDF5 tells pages of its own.
    """
    with QuietFile(path, "w+b") as file:
        try:
            yield file
        except Exception:
            if not file.error:
                raise
        if file.error:
            raise file.error
