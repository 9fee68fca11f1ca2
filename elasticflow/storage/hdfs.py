"""Paths in HDFS that are used as those of this machine are.

The client is imported on use: every process of a run knows of these paths, and few ever see one.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from elasticflow.errors import ConfigError
from elasticflow.storage.remote import ABSENT, FileStatus
from elasticflow.storage.urls import PATIENCE_S, SCHEMES, split

if TYPE_CHECKING:
    from elasticflow.storage.webhdfs import WebHdfs


class Stat(NamedTuple):
    """What of ``os.stat_result`` is known."""

    st_mode: int
    st_size: int
    st_mtime: float


class HdfsPath(os.PathLike[str]):
    """A file or folder in HDFS by its URL: of ``pathlib.Path`` what a run's folder needs."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        scheme, authority, path = split(url)
        if scheme not in SCHEMES:
            raise ConfigError(
                f"{url}: a run's folder is a directory, or on HDFS (hdfs://authority/path). Its checkpoints "
                "may lie in an object store: checkpoint_dir names where."
            )
        self._url = f"{scheme}://{authority}{path}"
        self._patience_s = patience_s

    def __str__(self) -> str:
        return self._url

    __fspath__ = __str__

    def __repr__(self) -> str:
        return f"HdfsPath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HdfsPath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> HdfsPath:
        return HdfsPath(f"{self._url.rstrip('/')}/{name}", self._patience_s)

    @property
    def name(self) -> str:
        return posixpath.basename(split(self._url)[2])

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> HdfsPath:
        scheme, authority, path = split(self._url)
        return HdfsPath(f"{scheme}://{authority}{posixpath.dirname(path)}", self._patience_s)

    def exists(self) -> bool:
        client, path = self._of()
        return client.find(path) is not None

    def is_dir(self) -> bool:
        with suppress(*ABSENT):
            return stat.S_ISDIR(self.stat().st_mode)
        return False

    def is_file(self) -> bool:
        with suppress(*ABSENT):
            return stat.S_ISREG(self.stat().st_mode)
        return False

    def stat(self) -> Stat:
        client, path = self._of()
        found = client.status(path)
        kind = stat.S_IFDIR if found.is_dir else stat.S_IFREG
        return Stat(kind | found.permission, found.length, found.modified_at)

    def whoami(self) -> str:
        """As whom HDFS knows this process."""
        return self._of()[0].whoami()

    def walk(self, left_out: Container[str] = ()) -> Iterator[FileStatus]:
        """This file or folder, if it is there, and all in it; left_out: names at its top."""
        client, root = self._of()
        waiting = [each for each in (client.find(root),) if each]
        while waiting:
            yield (found := waiting.pop())
            if found.is_dir:
                with suppress(*ABSENT):
                    waiting += [
                        each
                        for each in client.list(found.path)
                        if found.path != root or each.name not in left_out
                    ]

    def iterdir(self) -> Iterator[HdfsPath]:
        client, path = self._of()
        return iter([self / one.name for one in client.list(path)])

    def read_bytes(self) -> bytes:
        client, path = self._of()
        return client.read(path)

    def replace_bytes(self, data: bytes, secret: bool = False) -> None:
        """Whoever reads the file finds the old or the new one, never a part. secret: for its owner alone."""
        client, path = self._of()
        client.write(path, data, overwrite=True, permission=0o600 if secret else None)

    def unlink(self, missing_ok: bool = False) -> None:
        client, path = self._of()
        found = client.find(path)
        if found is None and not missing_ok:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._url)
        if found is not None and found.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._url)
        client.remove(path, recursive=False)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Where it may not be there yet, of several who make it at once one succeeds."""
        client, path = self._of()
        if (found := client.find(path)) is not None:
            if not exist_ok or not found.is_dir:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._url)
            return
        folder = posixpath.dirname(path)
        if not parents and not client.status(folder).is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.parent))
        if parents:
            client.mkdirs(folder)  # the mode is of the last one alone
        make = client.mkdirs if exist_ok else client.mkdir
        make(path, None if mode == 0o777 else mode)  # HDFS takes nothing off a mode

    def rmdir(self) -> None:
        """Removes a folder that is empty."""
        client, path = self._of()
        client.remove(path, recursive=False)

    def remove_tree(self) -> None:
        """Removes a folder with all it holds; what is not there is no error."""
        client, path = self._of()
        client.remove(path)

    def _of(self) -> tuple[WebHdfs, str]:
        return _client_of(self._url, self._patience_s)


def _client_of(url: str, patience_s: float) -> tuple[WebHdfs, str]:
    from elasticflow.storage.webhdfs import WebHdfs

    return WebHdfs.of(url, patience_s)
