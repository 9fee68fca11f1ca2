"""Storage in a directory: of this machine, or one that all machines mount."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from elasticflow.errors import ConfigError

_TEMPORARY = ".partial"
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class DirectoryStorage:
    """The files under ``root``. See ``elasticflow.storage.Storage`` for what each method promises."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()

    def __repr__(self) -> str:
        return f"DirectoryStorage({str(self.root)!r})"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it is there already, and is never replaced", str(path))
        _make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            with temporary.open("x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def size(self, name: str) -> int:
        return self._path(name).stat().st_size

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def list(self, folder: str = "") -> list[str]:
        path = self._path(folder) if folder else self.root
        try:
            return sorted(name for name in os.listdir(path) if not name.endswith(_TEMPORARY))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        path = self._path(name)
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            _sync_folder(path.parent)
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> Path:
        """Where ``name`` lies. Raises ConfigError if that is not below the root, or kept for temporaries."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts:
            raise ConfigError(f"name {name!r} leaves the storage's folder. Use a relative name without '..'.")
        if name == "." or str(pure) != name or "\0" in name or name.endswith(_TEMPORARY):
            raise ConfigError(f"name {name!r} is no file's name. Use one such as 'folder/file.h5'.")
        return self.root / pure


def _publish(temporary: Path, path: Path) -> None:
    """Gives a complete file its name, atomically. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Without hard links a writer of the same name within these two lines goes unnoticed.
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
        temporary.rename(path)


def _make_folder(folder: Path) -> None:
    """Creates a folder and those above it, so that they survive a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
