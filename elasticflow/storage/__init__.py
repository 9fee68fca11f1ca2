"""Where checkpoints, journals and logs lie: the small interface, and a folder, HDFS or a store behind it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

from elasticflow.storage.directory import DirectoryStorage
from elasticflow.storage.remote import RemoteStorage
from elasticflow.storage.urls import is_url

__all__ = ["DirectoryStorage", "RemoteStorage", "Storage", "Writable", "is_url", "storage_of"]


class Writable(Protocol):
    """A file that is written from front to back, once."""

    def write(self, data: Any, /) -> int:
        """Takes all bytes of a buffer, such as an array's memory, and needs it no more when it returns."""


class Storage(Protocol):
    """Files that are written once, whole, and never changed.

    Names are relative POSIX paths, such as ``checkpoints/step-0000001200/manifest.json``; folders
    come into being with their first file. A name that is absolute, has a ``..`` or is not in its
    shortest form raises ConfigError; what the medium refuses raises OSError. A storage that is gone
    is never mistaken for an empty one: all methods raise OSError then, and none FileNotFoundError.
    """

    def create(self, name: str) -> AbstractContextManager[Writable]:
        """A new file to write, from front to back; at the end of the ``with`` it is there, whole, for good.

        Until then nobody sees it; if the body raises, nobody ever does. It replaces nothing:
        raises FileExistsError, before the body or after it, if there is a file of that name, which
        then is there for good. Where only the last act fails, the file may be there after an OSError.
        """

    def open(self, name: str) -> BinaryIO:
        """An existing file, to read and seek in. The caller closes it."""

    def size(self, name: str) -> int:
        """The file's length in bytes."""

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""

    def list(self, folder: str = "") -> list[str]:
        """Names of the files and folders in ``folder``, sorted; none if there is no such folder."""

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all it holds; what is not there is no error."""

    def sweep(self, folder: str) -> None:
        """Removes what writers that were killed left in ``folder``, unseen. Nobody may be writing there."""


def storage_of(where: str | os.PathLike[str]) -> Storage:
    """The storage in a folder, or at a URL such as ``s3://bucket/runs/mnist``. Raises ConfigError."""
    if is_url(text := os.fspath(where)):
        return RemoteStorage(text)
    return DirectoryStorage(where)
