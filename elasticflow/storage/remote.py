"""What is reached by URL: what its client has to be able to do, and a storage by that."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, TypeAlias

from elasticflow.process.retry import RemovedError
from elasticflow.storage.names import TEMPORARY, check_name
from elasticflow.storage.urls import PATIENCE_S, is_hdfs

if TYPE_CHECKING:
    from elasticflow.storage import Writable

ABSENT = (FileNotFoundError, NotADirectoryError)


class FileStatus(NamedTuple):
    """What is known of a file or folder.

    length: in bytes. modified_at: seconds since 1970. id: of this file, and of no other of its name; HDFS
    keeps it when the file is renamed.
    """

    path: str
    name: str
    length: int
    is_dir: bool
    modified_at: float
    permission: int
    owner: str
    id: int | str


Statuses: TypeAlias = list[FileStatus]


class RemoteClient(Protocol):
    """Files by their absolute paths. What fails raises OSError with its number, after it was tried again."""

    def status(self, path: str) -> FileStatus:
        """Raises FileNotFoundError."""

    def find(self, path: str) -> FileStatus | None:
        """None if there is no such file or folder."""

    def list(self, path: str) -> Statuses:
        """What a folder holds, sorted by name. Raises NotADirectoryError, FileNotFoundError."""

    def open(self, path: str) -> BinaryIO:
        """To read and seek in. Raises FileNotFoundError, IsADirectoryError."""

    def read_into(self, path: str, offset: int, buffer: memoryview) -> int:
        """Fills a buffer with a file's bytes from ``offset`` on; returns how many there were."""

    def create(self, path: str) -> AbstractContextManager[Writable]:
        """A new file, there and whole at the end of the ``with``. Raises FileExistsError."""

    def mkdirs(self, path: str) -> None:
        """Has a folder be there, if there are any without files in them."""

    def remove(self, path: str) -> None:
        """A file, or a folder with all it holds; what is not there is no error."""

    def sweep(self, path: str) -> None:
        """Removes what else of writers that were killed there is in a folder, beside hidden files."""


def client_of(url: str, patience_s: float = PATIENCE_S) -> tuple[RemoteClient, str]:
    """Who answers for a URL, and the path there. Raises ConfigError.

    The clients are imported on use: every process of a run knows of URLs, and few ever see one.
    """
    if is_hdfs(url):
        from elasticflow.storage.webhdfs import WebHdfs

        return WebHdfs.of(url, patience_s)
    from elasticflow.storage.objects import Objects

    return Objects.of(url, patience_s)


class RemoteStorage:
    """The files under the folder at ``url``, which is there. See ``Storage`` for what each method promises.

    A folder that is gone raises RemovedError (ESTALE) everywhere; one of an object store is there as long as
    there is anything in it. Files that were begun and are not whole have names of their own, hidden, which
    end in ``.partial``, or none: a writer that was killed is in nobody's way.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url = url.rstrip("/")
        self._client, self.root = client_of(url, patience_s)

    def __repr__(self) -> str:
        return f"RemoteStorage({self.url!r})"

    @contextmanager
    def create(self, name: str) -> Iterator[Writable]:
        path = self._path(name)
        if self._client.find(path):
            raise FileExistsError(errno.EEXIST, "it is there already, and is never replaced", path)
        folder = posixpath.dirname(path)
        with self._rooted():
            if folder != self.root:
                self._make(folder)
            with self._client.create(path) as file:
                yield file

    def _make(self, folder: str) -> None:
        found = self._client.find(folder)
        if found is None:
            self._check_root()  # or it would be made anew
            self._client.mkdirs(folder)
        elif not found.is_dir:
            raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", folder)

    def open(self, name: str) -> BinaryIO:
        with self._rooted():
            return self._client.open(self._path(name))

    def size(self, name: str) -> int:
        with self._rooted():
            return self._client.status(self._path(name)).length

    def exists(self, name: str) -> bool:
        found = self._client.find(self._path(name)) is not None
        if not found:
            self._check_root()
        return found

    def list(self, folder: str = "") -> list[str]:
        try:
            found = self._client.list(self._path(folder) if folder else self.root)
        except ABSENT:
            self._check_root()
            return []
        return [one.name for one in found if not one.name.endswith(TEMPORARY)]

    def remove(self, name: str) -> None:
        path = self._path(name)
        with suppress(NotADirectoryError):
            self._client.remove(path)
        self._check_root()

    def sweep(self, folder: str) -> None:
        path = self._path(folder)
        try:
            found = self._client.list(path)
        except ABSENT:
            self._check_root()
            found = []
        for one in found:
            if one.name.endswith(TEMPORARY):
                with suppress(*ABSENT, PermissionError):  # what stays is in nobody's way
                    self._client.remove(one.path)
        self._client.sweep(path)

    def _path(self, name: str) -> str:
        """Where ``name`` lies. Raises ConfigError, see ``check_name``."""
        check_name(name)
        return posixpath.join(self.root, name)

    def _check_root(self) -> None:
        """Raises RemovedError (ESTALE) if the root is gone: the client knows, or does not answer."""
        with suppress(*ABSENT):
            if self._client.status(self.root).is_dir:
                return
        raise RemovedError(errno.ESTALE, f"the storage's folder {self.url} is gone, or never was there")

    @contextmanager
    def _rooted(self) -> Iterator[None]:
        """Tells a file that is not there from a storage that is not there."""
        try:
            yield
        except FileNotFoundError:
            self._check_root()
            raise
