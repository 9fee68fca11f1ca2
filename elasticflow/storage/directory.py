"""Storage in a directory: of this machine, or one that all machines mount."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from elasticflow.process.retry import RemovedError
from elasticflow.storage.names import TEMPORARY, check_name

_ABSENT = (FileNotFoundError, NotADirectoryError)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class DirectoryStorage:
    """The files under ``root``, which is there. See ``Storage`` for what each method promises.

    A root that is gone raises OSError (ESTALE) everywhere, and is never made anew: what would be
    written there would be lost when the right one comes back. It is a RemovedError if it will not.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        self._prefix = os.path.join(self.root, "")
        self._parent = _identity(self.root.parent) if self.root.is_dir() else None
        self._leftovers: set[Path] = set()
        """Temporary files that could not be removed when writing them failed."""

    def __repr__(self) -> str:
        return f"DirectoryStorage({str(self.root)!r})"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        with self._rooted():
            self._clear_leftovers()
            if self.exists(name):
                self._make_durable(path.parent)  # an earlier try may have failed to, as its very last act
                raise FileExistsError(errno.EEXIST, "it is there already, and is never replaced", str(path))
            self._make_folder(path.parent)
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
            try:
                with open(temporary, "x+b") as file:
                    yield file
                    file.flush()
                    # Before it gets its name, which might otherwise survive a power cut that its bytes do
                    # not.
                    os.fsync(file.fileno())
                _publish(temporary, path)
            finally:
                self._leftovers.add(temporary)
                self._clear_leftovers()
            self._make_durable(path.parent)

    def open(self, name: str) -> BinaryIO:
        with self._rooted():
            return open(self._at(name), "rb")

    def size(self, name: str) -> int:
        with self._rooted():
            found = os.stat(self._at(name))
            if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):  # who opened it would wait
                raise OSError(errno.EINVAL, "is no file", name)
            return found.st_size

    def exists(self, name: str) -> bool:
        try:
            os.stat(self._at(name))  # of all errors but this one nothing follows
        except _ABSENT:
            self._check_root()
            return False
        return True

    def list(self, folder: str = "") -> list[str]:
        path = self._at(folder) if folder else self.root
        try:
            return sorted(name for name in os.listdir(path) if not name.endswith(TEMPORARY))
        except _ABSENT:
            self._check_root()
            return []

    def remove(self, name: str) -> None:
        path = self._path(name)
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            sync_folder(path.parent)
        except _ABSENT:
            self._check_root()

    def sweep(self, folder: str) -> None:
        path = self._path(folder)
        try:
            left = [name for name in os.listdir(path) if name.endswith(TEMPORARY)]
        except _ABSENT:
            self._check_root()
            return
        for name in left:
            with suppress(*_ABSENT, PermissionError, IsADirectoryError):  # what stays is in nobody's way
                os.unlink(path / name)

    def _path(self, name: str) -> Path:
        """Where ``name`` lies. Raises ConfigError, see ``check_name``."""
        check_name(name)
        return self.root / name

    def _at(self, name: str) -> str:
        """The same, as the system takes it."""
        check_name(name)
        return f"{self._prefix}{name}"

    def _check_root(self) -> None:
        """Raises OSError (ESTALE) if the root is gone; RemovedError if it is no more in the folder it was in.

        Where a file system is not mounted, that folder is gone as well, or the one below the mount.
        """
        if os.path.isdir(self.root):
            return
        kind, parent = OSError, self.root.parent
        with suppress(OSError):
            if self._parent is not None and self._parent == _identity(parent):
                kind = OSError if self.root.name in os.listdir(parent) else RemovedError
        raise kind(errno.ESTALE, f"the storage's folder {self.root} is gone")

    @contextmanager
    def _rooted(self) -> Iterator[None]:
        """Tells a file that is not there from a storage that is not there."""
        try:
            yield
        except FileNotFoundError:
            self._check_root()
            raise

    def _make_folder(self, folder: Path) -> None:
        """Creates a folder and those above it, up to the root."""
        if folder != self.root and not os.path.isdir(folder):
            # Not ``os.makedirs``, which would make a root anew that is gone.
            self._make_folder(folder.parent)
            with suppress(FileExistsError):
                os.mkdir(folder)

    def _make_durable(self, folder: Path) -> None:
        """Has the names in a folder, its own, and those above it survive a power cut."""
        sync_folder(folder)
        if folder != self.root:
            self._make_durable(folder.parent)

    def _clear_leftovers(self) -> None:
        """Removes what can be removed. A root that is gone may come back, and the file with it."""
        for temporary in list(self._leftovers):
            with suppress(OSError):
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                self._check_root()
                self._leftovers.discard(temporary)


def _publish(temporary: Path, path: Path) -> None:
    """Gives a complete file its name, atomically. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        if not _is_same(path, temporary):  # it is, where NFS repeats what it did already
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Without hard links a writer of the same name within these two lines goes unnoticed.
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
        os.rename(temporary, path)


def _is_same(path: Path, temporary: Path) -> bool:
    try:
        return path.samefile(temporary)
    except FileNotFoundError:  # the other one has been removed since
        return False


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def sync_folder(folder: Path) -> None:
    """What has a name in this folder has it also after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
