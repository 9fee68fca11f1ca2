"""Finding and reading the files that a source names: local ones by path, those in HDFS or a store by URL.

A remote file is read range by range, each by a request of its own: between two reads nothing is open.
"""

from __future__ import annotations

import glob
import io
import os
import posixpath
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np

from elasticflow.data.threads import Result, map_ahead
from elasticflow.errors import ConfigError, DataError, UnreadableError
from elasticflow.storage.file_ids import STAY, FileId, changed, of_stat, sampled
from elasticflow.storage.remote import ABSENT, FileStatus, RemoteClient, client_of
from elasticflow.storage.urls import check

PATIENCE_S = 60.0
"""How long a read is tried again while HDFS, or a store, does not answer."""
PAGE_BYTES = 64 << 10
"""What is read at least where a file is read in bits: headers, indexes. These pages are kept."""
MOST_PAGES = 64
MOST_ROOTS = 16
"""Of folders that files lie in, so many are looked at."""
HOLE_BYTES = 1 << 20
"""Ranges that lie closer together are read at once: a request takes as long as reading so much."""

STREAM_BYTES = 16 << 20
"""Asked for at once where a whole file is read: small requests cost a DataNode twice as much."""

Bytes: TypeAlias = "bytes | memoryview"
Range = tuple[int, int]
"""First byte, and the one after the last."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")


class File(ABC):
    """A file of records, by its path or URL. Keeps nothing open."""

    is_remote = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def open(self, ranges: Iterable[Range] = ()) -> BinaryIO:
        """To read and seek in. ranges: what will be read in any case; a remote file reads it at once."""

    def buffered(self, size: int) -> BinaryIO:
        """As ``open``, for small reads from front to back: a remote file is read ``size`` bytes at a time."""
        return self.open()

    @abstractmethod
    def read(self, start: int, stop: int) -> Bytes:
        """These bytes."""

    @abstractmethod
    def pieces(self, start: int, size: int) -> Iterator[Bytes]:
        """All bytes from ``start`` on, ``size`` at a time; the last piece is shorter, perhaps empty."""

    @abstractmethod
    def identity(self, num_files: int) -> FileId:
        """What it was when it was found; num_files: that the source has. Raises UnreadableError."""

    @abstractmethod
    def _change(self) -> str:
        """What is different from when the file was found, in words; "" if nothing is, or nobody says."""

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises UnreadableError, instead of any DataError, if the file is not what it was when found.

        It is looked at even if all went well: bytes of another one may have been read.
        """
        try:
            yield
        except UnreadableError:
            raise
        except DataError as error:
            if change := self._change():
                raise UnreadableError(f"{change}. {STAY}") from error
            raise
        if change := self._change():
            raise UnreadableError(f"{change}. {STAY}")


class LocalFile(File):
    """A file of this machine's, or of a file system that is mounted here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._host = socket.gethostname()
        stat = os.stat(name)
        self._found, self._stamp = of_stat(name, stat, self._host), _stamp(stat)
        self._num_files = 0  # until samples were taken

    def identity(self, num_files: int) -> FileId:
        try:
            self._found, self._num_files = sampled(self._found, num_files), num_files
        except OSError as error:
            raise UnreadableError(f"{self}: cannot be read: {error.strerror}") from error
        return self._found

    def _change(self) -> str:
        try:
            return self._difference(os.stat(self.name))
        except FileNotFoundError:
            return f"{self} is no longer there"
        except OSError as error:
            return f"{self} can be read no more ({error.strerror})"

    def _difference(self, stat: os.stat_result) -> str:
        """In words; "" if there is none. Raises OSError."""
        now = of_stat(self.name, stat, self._host)
        if change := changed(self._found, now):
            return change
        # Another file may have the same size and time, and a time can be set.
        if _stamp(stat) != self._stamp and self._num_files:
            if change := changed(self._found, sampled(now, self._num_files)):
                return change
            self._stamp = _stamp(stat)  # its rights, or links to it, are others
        return ""

    def check_mapped(self) -> None:
        """Raises UnreadableError if it was written to since it was found: whoever has mapped it sees that.

        Who has mapped a file that was replaced or removed has it as it was.
        """
        with suppress(OSError):
            stat = os.stat(self.name)
            if str(stat.st_ino) == self._found.inode and (change := self._difference(stat)):
                raise UnreadableError(f"{change}. {STAY}")

    def open(self, ranges: Iterable[Range] = ()) -> BinaryIO:
        return open(self.name, "rb")

    def read(self, start: int, stop: int) -> Bytes:
        with open(self.name, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def pieces(self, start: int, size: int) -> Iterator[Bytes]:
        with open(self.name, "rb") as file:
            file.seek(start)
            piece = file.read(size)
            while len(piece) == size:
                yield piece
                piece = file.read(size)
            yield piece


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    """What is another one whenever a file was written to or replaced, and at times without that."""
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


class RemoteFile(File):
    """A file in HDFS, or in a store.

    What reading raises is an UnreadableError: the medium does not answer, or the file has changed.
    A file that may not be read at all raises DataError the first time.
    """

    is_remote = True

    def __init__(self, name: str, client: RemoteClient, status: FileStatus) -> None:
        super().__init__(name)
        self._client = client
        self._found = status
        self._was_read = False
        self._pages: dict[int, Bytes] = {}

    def identity(self, num_files: int) -> FileId:
        found = self._found
        return FileId(self.name, found.length, f"{found.modified_at:.3f}", str(found.id))

    def has_beside(self, folder: str, name: str) -> bool:
        """Whether there is something of this name in a folder around the file. Raises UnreadableError."""
        path = self._found.path[: len(self._found.path) - len(self.name) + len(folder)]
        try:
            return self._client.find(posixpath.join(path, name)) is not None
        except OSError as error:
            raise self._lost(error) from error

    @property
    def length(self) -> int:
        """In bytes, when the file was found."""
        return self._found.length

    def open(self, ranges: Iterable[Range] = ()) -> BinaryIO:
        parts = {start: self.read(start, stop) for start, stop in joined(ranges)}
        return cast(BinaryIO, _Ranged(self, parts))

    def buffered(self, size: int) -> BinaryIO:
        return io.BufferedReader(_Ranged(self, {}), size)

    def read(self, start: int, stop: int) -> Bytes:
        buffer = np.empty(max(0, min(stop, self.length) - start), np.uint8).data
        self.read_into(start, buffer)
        return buffer

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills the buffer."""
        if not len(buffer):
            return
        try:
            count = self._client.read_into(self._found.path, start, buffer)
        except OSError as error:
            raise self._lost(error) from error
        if count < len(buffer):
            raise self._lost(EOFError(f"{count} of the {len(buffer)} bytes from {start} on came"))
        self._was_read = True

    def read_paged(self, start: int, stop: int) -> Bytes:
        """The same as ``read``, from pages that are kept."""
        stop = min(stop, self.length)
        numbers = range(start // PAGE_BYTES, -(-stop // PAGE_BYTES))
        pages = [self._pages.get(number) for number in numbers]
        if None in pages:
            first = numbers.start * PAGE_BYTES
            text = bytes(self.read(first, numbers.stop * PAGE_BYTES))
            for number in numbers:
                self._pages[number] = text[number * PAGE_BYTES - first :][:PAGE_BYTES]
            for number in list(self._pages)[:-MOST_PAGES]:  # other threads may do the same
                self._pages.pop(number, None)
        else:
            text = b"".join(page for page in pages if page)
        return text[start - numbers.start * PAGE_BYTES :][: stop - start]

    def pieces(self, start: int, size: int) -> Iterator[Bytes]:
        step = size * max(1, STREAM_BYTES // size)
        reads = map_ahead(
            lambda first: self.read(first, first + step), range(start, self.length, step), most=2
        )
        for part in reads:
            yield from (part[place : place + size] for place in range(0, len(part), size))
        if (self.length - start) % size == 0:
            yield b""

    def _lost(self, error: Exception) -> DataError:
        """What to say of an error in reading."""
        change = self._change()
        text = f"{change}. {STAY}" if change else f"{self}: cannot be read: {error}"
        refused = isinstance(error, (PermissionError, FileNotFoundError))
        return DataError(text) if refused and not self._was_read else UnreadableError(text)

    def _change(self) -> str:
        try:
            now = self._client.status(self._found.path)
        except FileNotFoundError:
            return f"{self} is no longer there"
        except OSError:
            return ""
        found = self._found
        if (now.length, now.modified_at, now.id) == (found.length, found.modified_at, found.id):
            return ""
        return (
            f"{self} has changed since it was opened: {now.length} bytes instead of {found.length}, modified "
            f"{now.modified_at - found.modified_at:.1f} s later"
        )


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges that cover the given ones; those with small holes between them become one."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if result and start - result[-1][1] <= HOLE_BYTES:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result


class _Ranged(io.RawIOBase):
    """A remote file to seek in. parts: what of it is here already, by its first byte."""

    def __init__(self, file: RemoteFile, parts: dict[int, Bytes]) -> None:
        self._file = file
        self._parts = parts
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """A view where the bytes are here already: pyarrow reads on without copying them."""
        left = max(0, self._file.length - self._position)
        size = left if size is None or size < 0 else min(size, left)
        data = self._here(size)
        if data is None:
            reads = self._file.read if size >= PAGE_BYTES else self._file.read_paged
            data = reads(self._position, self._position + size)
        self._position += size
        return cast(bytes, data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = min(len(view), max(0, self._file.length - self._position))
        if size < PAGE_BYTES or self._here(size) is not None:
            view[:size] = self.read(size)
        else:
            self._file.read_into(self._position, view[:size])
            self._position += size
        return size

    def _here(self, size: int) -> Bytes | None:
        for start, part in self._parts.items():
            if start <= self._position and self._position + size <= start + len(part):
                return memoryview(part)[self._position - start :][:size]
        return None


def existing_file(kind: str, path: str | os.PathLike[str]) -> File:
    """One file. Raises DataError if there is none."""
    path = os.fspath(path)
    if is_url(kind, path):
        return _Folders(kind, path).existing_file()
    if os.path.isfile(path):
        return LocalFile(path)
    if os.path.isdir(path):
        raise DataError(f"{kind}: {path} is a directory, not a file.")
    raise DataError(f"{kind}: there is no file {path} (looked from {os.getcwd()}).")


def matching_files(kind: str, pattern: str | os.PathLike[str]) -> list[File]:
    """The files that a glob pattern (``**`` included) or a path names, sorted by name.

    Raises DataError if there are none.
    """
    pattern = os.fspath(pattern)
    if is_url(kind, pattern):
        return _Folders(kind, pattern).matching_files()
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [existing_file(kind, pattern)]
    found = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not found:
        raise DataError(f"{kind}: no file matches {pattern} (looked from {os.getcwd()}).")
    return [LocalFile(path) for path in found]


def data_files(
    kind: str, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, empty: bool = False
) -> list[File]:
    """As ``matching_files``, of each path; a folder stands for the files below it.

    Not for those whose name, or whose folder's, begins with "." or "_", which tools leave beside the data.
    Sorted by name. Raises DataError if there are none, unless folders may be empty, or one twice.
    """
    single = isinstance(paths, (str, os.PathLike))
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [file for path in named for file in _data_files(kind, os.fspath(path))]
    if not found and not empty:
        raise DataError(f"{kind}: {named[0] if single else named}: there is no file of data.")
    roots = {_root_of(file): file for file in found}
    for root, file in list(roots.items())[:MOST_ROOTS]:
        _refuse_inside_lake(root, file)
    names = [file.name for file in found]
    if twice := sorted(
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    ):
        raise DataError(f"{kind}: the paths name {twice[0]} more than once. Name each file once.")
    return sorted(found, key=lambda file: file.name)


def _data_files(kind: str, path: str) -> list[File]:
    if is_url(kind, path):
        return _Folders(kind, path).data_files()
    matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]
    folders = [match for match in matches if os.path.isdir(match)]
    if not folders or any(os.path.isfile(match) for match in matches):
        return matching_files(kind, path)
    return [LocalFile(name) for folder in folders for name in _below(folder)]


def _below(folder: str) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        _refuse_lake(where, [*folders, *names])
        folders[:] = [name for name in folders if not _is_beside(name)]
        yield from (os.path.join(where, name) for name in names if not _is_beside(name))


def _refuse_lake(folder: str, names: Sequence[str]) -> None:
    """Raises DataError for a table of a lake: not all that lies there is what it holds now."""
    found = "Delta" if "_delta_log" in names else ""
    if posixpath.basename(folder) == "metadata" and any(name.endswith(".metadata.json") for name in names):
        folder = posixpath.dirname(folder)
        raise DataError(
            f"{folder}: is a table of Iceberg. Read it by ef.data.Iceberg, by its name in a catalog, or a "
            "file of its metadata."
        )
    if found:
        raise DataError(f"{folder}: is a table of {found}. Read it by ef.data.{found}({folder!r}).")


def _root_of(file: File) -> str:
    """The folder around a file that is named after no partition."""
    folder = posixpath.dirname(file.name)
    while "=" in posixpath.basename(folder):
        folder = posixpath.dirname(folder)
    return folder


def _refuse_inside_lake(root: str, file: File) -> None:
    """The same for files that were named by a pattern, or one by one."""
    if isinstance(file, RemoteFile):
        there = file.has_beside(root, "_delta_log")
    else:
        there = os.path.isdir(os.path.join(root, "_delta_log"))
    _refuse_lake(root, ["_delta_log"] if there else [])


def _is_beside(name: str) -> bool:
    return name.startswith((".", "_"))


def identities(files: Sequence[File]) -> tuple[FileId, ...]:
    """Of all files of a source."""
    return tuple(file.identity(len(files)) for file in files)


def map_files(act: Callable[[File], Result], files: Sequence[File]) -> Iterator[Result]:
    """As ``map``; several at a time where files answer with a delay."""
    return map_ahead(act, files) if any(file.is_remote for file in files[:1]) else map(act, files)


def path_of(location: str) -> str:
    """A location in a table's words as a path of this machine's, or a URL."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return location


def is_url(kind: str, path: str) -> bool:
    """Whether this names something in HDFS or a store. Raises DataError for a URL that cannot be used."""
    try:
        check(path)
    except ConfigError as error:
        raise DataError(f"{kind}: {error}") from error
    return _URL.match(path) is not None


class _Folders:
    """What a URL or a pattern of URLs names."""

    def __init__(self, kind: str, url: str) -> None:
        self._kind, self._url = kind, url
        try:
            self._client, self._path = client_of(url, PATIENCE_S)
        except ConfigError as error:
            raise DataError(f"{kind}: {url}: {error}") from error

    def existing_file(self) -> File:
        with self._told():
            return self._file(self._client.status(self._path))

    def matching_files(self) -> list[File]:
        with self._told():
            if not glob.has_magic(self._path) or self._exists():
                return [self._file(self._client.status(self._path))]
            found = [one for one in self._matching() if not one.is_dir]
        if not found:
            raise DataError(f"{self._kind}: no file matches {self._url}.")
        return [self._file(status) for status in sorted(found, key=lambda status: status.path)]

    def data_files(self) -> list[File]:
        """See the function of this name."""
        with self._told():
            if not glob.has_magic(self._path) or self._exists():
                matches = [self._client.status(self._path)]
            else:
                matches = self._matching()
            if files := [one for one in matches if not one.is_dir]:
                matches = files
            found = [file for one in matches for file in self._below(one)]
        return [self._file(status) for status in found]

    def _below(self, status: FileStatus) -> Iterator[FileStatus]:
        if not status.is_dir:
            yield status
            return
        there = self._client.list(status.path)
        _refuse_lake(self._named(status), [one.name for one in there])
        for one in there:
            if not _is_beside(one.name):
                yield from self._below(one)

    def _matching(self) -> list[FileStatus]:
        """What fits the pattern, as ``glob`` has it: nothing hidden, unless the pattern says so."""
        *parts, last = [part for part in self._path.split("/") if part]
        if last == "**":
            parts, last = [*parts, last], "*"
        folders = ["/"]
        for part in parts:
            folders = list(dict.fromkeys(each for folder in folders for each in self._folders(folder, part)))
        return [one for folder in folders for one in self._fitting(folder, last)]

    def _folders(self, folder: str, part: str) -> Iterator[str]:
        """Those that one part of the pattern leads to; ``**``: this one, and all below it."""
        if part == "**":
            yield folder
        if not glob.has_magic(part):
            yield posixpath.join(folder, part)
            return
        for one in self._fitting(folder, part):
            if one.is_dir:
                yield from self._folders(one.path, part) if part == "**" else [one.path]

    def _fitting(self, folder: str, part: str) -> list[FileStatus]:
        try:
            there = self._client.list(folder)
        except ABSENT:
            return []
        shown = part.startswith(".")
        return [
            one for one in there if fnmatchcase(one.name, part) and (shown or not one.name.startswith("."))
        ]

    def _exists(self) -> bool:
        try:
            return not self._client.status(self._path).is_dir
        except ABSENT:
            return False

    def _named(self, status: FileStatus) -> str:
        authority = _URL.match(self._url)
        assert authority is not None
        return authority[0] + status.path

    def _file(self, status: FileStatus) -> File:
        name = self._named(status)
        if status.is_dir:
            raise DataError(f"{self._kind}: {name} is a directory, not a file.")
        return RemoteFile(name, self._client, status)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ABSENT as error:
            raise DataError(f"{self._kind}: there is no file {self._url}.") from error
        except PermissionError as error:
            raise DataError(f"{self._kind}: {self._url} may not be read: {error}") from error
        except OSError as error:
            raise UnreadableError(f"{self._kind}: {self._url} cannot be read: {error}") from error
