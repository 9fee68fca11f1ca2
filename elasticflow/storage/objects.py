"""Stores that fsspec knows: S3, Google's and Azure's by their own clients, and whatever else it has one for.

An object appears whole or not at all, and by a *conditional put* only where there is none of its name. What
is written is gathered in a file of this machine's first, since a checkpoint's part is complete, or was given
up, before anything of it may be seen; that file has no name, and is gone with its process. A store of another
kind, such as ``sftp://``, gets it under a hidden name, and then renames it.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import posixpath
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TypeVar

from elasticflow.errors import ConfigError
from elasticflow.process.retry import Backoff, is_away, is_full
from elasticflow.storage.names import TEMPORARY
from elasticflow.storage.range_file import GAP_BYTES, Positioned
from elasticflow.storage.refusals import reason
from elasticflow.storage.remote import FileStatus, Statuses
from elasticflow.storage.urls import PATIENCE_S, split

T = TypeVar("T")

PIECE_BYTES, AT_ONCE = 16 << 20, 4
"""A large object goes in such pieces, so many at a time: one connection alone gives some 50 MB/s on S3."""
BUFFER_BYTES = 1 << 16
"""Of a file that is open; what is read at once and longer passes by it."""
LEAST_AHEAD, MOST_AHEAD, GROWTH = 1 << 20, AT_ONCE * PIECE_BYTES, 4
"""Read at least, as a request takes as long as reading so much; and by how much more for whoever reads on."""
MOST_PIECES = 10_000
"""Of an object in S3."""

_S3, _GS = ("s3", "s3a"), ("gs", "gcs")
_AZURE = ("abfs", "abfss", "az")
_EXTRAS = dict.fromkeys(_S3, "s3") | dict.fromkeys(_GS, "gcs") | dict.fromkeys(_AZURE, "azure")
"""By scheme, the extra that brings its client. They put an object whole, and only where there is none."""
_WRITER = "elasticflow-writer"
"""The metadata in which an object's writer knows it again."""
_IDS = ("generation", "ETag", "etag", "md5", "ino")
_MOMENTS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
"""Under which names clients tell which version of a file this is, and since when it is so."""
_KINDS: tuple[tuple[type[OSError], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
)
_NO_WORDS = "Bad Request"
"""All that S3 says of credentials that have expired where its answer has no body, as to HEAD."""
_BUGS = (TypeError, AttributeError, NameError, AssertionError, NotImplementedError)

for _client in ("fsspec", "s3fs", "aiobotocore", "gcsfs", "google", "adlfs", "azure"):
    # Where nobody has set up logging, Python prints their tracebacks; what they raise is told in one line.
    logging.getLogger(_client).addHandler(logging.NullHandler())


class Objects:
    """A bucket, or what else the first part of a URL names. Threads may share it, and it may be used after a
    fork.

    base: such as ``s3://bucket``. patience_s: how long what may pass is tried again, beyond what the store's
    own client tries.
    """

    def __init__(self, base: str, patience_s: float) -> None:
        self._base, self._scheme = base, base.partition("://")[0]
        self._backoff = Backoff(first_s=0.1, most_s=3.0, patience_s=patience_s)
        self._open_fs()  # who is not installed is told at once

    def __repr__(self) -> str:
        return f"Objects({self._base!r})"

    @classmethod
    def of(cls, url: str, patience_s: float = PATIENCE_S) -> tuple[Objects, str]:
        """Who answers for a URL, and the absolute path there. Raises ConfigError."""
        scheme, authority, path = split(url)
        return cls(f"{scheme}://{authority}", patience_s), path

    # --- names -----------------------------------------------------------------------------------

    def status(self, path: str) -> FileStatus:
        return self._retried(path, lambda fs: _status(path, self._asked(fs).info(self._full(path))))

    def find(self, path: str) -> FileStatus | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.status(path)
        return None

    def list(self, path: str) -> Statuses:
        full = self._full(path)

        def act(fs: Any) -> Statuses:
            own = fs._strip_protocol(full).rstrip("/")
            found = self._asked(fs).ls(full, detail=True)
            names = [str(one["name"]).rstrip("/") for one in found]
            if names == [own] and found[0]["type"] != "directory":
                raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder")
            # A console leaves an empty object in the place of a folder.
            there = [(name, one) for name, one in zip(names, found, strict=True) if name != own]
            return sorted(_status(posixpath.join(path, posixpath.basename(name)), one) for name, one in there)

        return self._retried(path, act)

    def mkdirs(self, path: str) -> None:
        if self._scheme not in _EXTRAS:
            self._retried(path, lambda fs: fs.makedirs(self._full(path), exist_ok=True))

    def remove(self, path: str) -> None:
        """One by one, by their keys: fsspec's ``rm`` takes a name for a pattern, and would remove others."""
        full = self._full(path)

        def act(fs: Any) -> None:
            if self._asked(fs).info(full)["type"] != "directory":
                fs.rm_file(full)
                return
            found = fs.find(full, withdirs=self._scheme not in _EXTRAS, detail=True)
            for name in sorted(found, reverse=True):  # what is in a folder first
                remove = fs.rmdir if found[name]["type"] == "directory" else fs.rm_file
                with suppress(FileNotFoundError):
                    remove(name)
            if self._scheme not in _EXTRAS:
                with suppress(FileNotFoundError):
                    fs.rmdir(full)

        with suppress(FileNotFoundError):
            self._retried(path, act)

    def sweep(self, path: str) -> None:
        """In S3 the pieces of an object that was never completed stay, and cost, until they are given up."""
        if self._scheme not in _S3:
            return

        def act(fs: Any) -> None:
            bucket, key, _ = fs.split_path(self._full(path))
            there = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/", Delimiter="/")
            for one in there.get("Uploads", []):
                fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])

        with suppress(OSError):  # it is in nobody's way
            self._retried(path, act)

    # --- reading ---------------------------------------------------------------------------------

    def open(self, path: str) -> BinaryIO:
        found = self.status(path)
        if found.is_dir:
            raise OSError(errno.EISDIR, "is a folder, not a file", self._full(path))
        return io.BufferedReader(_ObjectFile(self, path, found.length), BUFFER_BYTES)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> int:
        view, full, done = buffer.cast("B"), self._full(path), 0
        while done < len(view):
            stop = offset + min(done + AT_ONCE * PIECE_BYTES, len(view))
            starts = list(range(offset + done, stop, PIECE_BYTES))
            ends = [min(start + PIECE_BYTES, stop) for start in starts]
            for start, end, piece in zip(starts, ends, self._ranges(path, full, starts, ends), strict=True):
                if len(piece) > end - start:  # whose beginning may be that of the whole file
                    raise OSError(
                        errno.ENOTSUP, "gives other bytes than the range that it is asked for", full
                    )
                view[done : done + len(piece)] = piece
                done += len(piece)
                if len(piece) < end - start:  # the file ends here; what comes next would be in its place
                    return done
        return done

    def _ranges(self, path: str, full: str, starts: Sequence[int], ends: Sequence[int]) -> Sequence[bytes]:
        def act(fs: Any) -> Sequence[bytes]:
            found: Sequence[bytes] = fs.cat_ranges([full] * len(starts), starts, ends, on_error="raise")
            return found

        return self._retried(path, act)

    # --- writing ---------------------------------------------------------------------------------

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryFile(prefix="elasticflow-") as file:
            with _room_told():
                yield file
                num_bytes = file.seek(0, io.SEEK_END)
                file.flush()
            with self._telling(path):
                fs = self._asked(self._open_fs())
                self._put(fs, f"/proc/self/fd/{file.fileno()}", self._full(path), num_bytes)
        if (there := self.status(path).length) != num_bytes:
            raise OSError(errno.EIO, f"{there} of {num_bytes} bytes have arrived", self._full(path))

    def _put(self, fs: Any, local: str, full: str, num_bytes: int) -> None:
        if self._scheme not in _EXTRAS:
            return _put_and_rename(fs, local, full)
        writer = secrets.token_hex(8)
        options: dict[str, Any] = {}
        if self._scheme in _S3:
            piece = max(PIECE_BYTES, -(-num_bytes // MOST_PIECES))
            options = {"chunksize": piece, "max_concurrency": AT_ONCE, "Metadata": {_WRITER: writer}}
        elif self._scheme in _GS:
            options = {"metadata": {_WRITER: writer}}
        try:
            fs.put_file(local, full, mode="create", **options)
        except FileNotFoundError as error:  # the bucket, or the upload, which somebody has swept
            raise OSError(errno.EIO, f"was not written: {error}") from error
        except OSError as error:
            if not _is_taken(error):
                raise
            # An earlier try may have done it, and its answer was lost; or of two at once neither has.
            there = _writer_of(self._asked(fs), full)
            if there is None:
                raise OSError(errno.EAGAIN, "somebody else put it at the same time, in vain") from error
            if there != writer:
                raise FileExistsError(errno.EEXIST, "it is there already, and is never replaced") from error

    # --- asking ----------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return self._base + path

    def _open_fs(self) -> Any:
        """fsspec's file system. It keeps them itself, for each process: a fork must not use its parent's."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(f"{self._base}: needs fsspec. {self._cure}") from error
        try:
            return fsspec.core.url_to_fs(f"{self._base}/")[0]
        except ImportError as error:
            raise ConfigError(f"{self._base}: {error}. {self._cure}") from error
        except ValueError as error:
            if self._scheme in fsspec.available_protocols():
                raise ConfigError(f"{self._base}: {error}") from error
            raise ConfigError(
                f"{self._base} is a URL that cannot be read. Allowed are hdfs://, webhdfs://, swebhdfs://, "
                "s3://, gs://, abfs://, what else fsspec knows, and paths of mounted file systems."
            ) from error

    @property
    def _cure(self) -> str:
        extra = _EXTRAS.get(self._scheme)
        return f"Run: pip install 'elasticflow-trainer[{extra}]'" if extra else "Run: pip install fsspec"

    @staticmethod
    def _asked(fs: Any) -> Any:
        """The same, to be asked about names: what it remembers of them may be old."""
        fs.invalidate_cache()
        return fs

    def _retried(self, path: str, act: Callable[[Any], T]) -> T:
        failures, begun_s = 0, time.monotonic()
        while True:
            try:
                with self._telling(path):
                    return act(self._open_fs())
            except OSError as error:
                failures += 1
                delay_s = self._backoff.delay_s(time.monotonic() - begun_s, failures)
                if not is_away(error) or delay_s is None:
                    raise
            time.sleep(delay_s)

    @contextmanager
    def _telling(self, path: str) -> Iterator[None]:
        """Makes an OSError with its number of whatever a client raises."""
        try:
            yield
        except (ConfigError, *_BUGS):
            raise
        except Exception as error:
            number, words = _told(error)
            raise OSError(number, f"{words} ({self._base})", self._full(path)) from error


class _ObjectFile(Positioned):
    """Reads, and seeks in, the ``num_bytes`` of an object; more and more ahead for whoever reads on.

    For one thread at a time.
    """

    def __init__(self, owner: Objects, path: str, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        self._owner = owner
        self._ahead, self._ahead_at = memoryview(b""), 0
        """Bytes that are here, and where they begin."""
        self._next, self._ahead_bytes = -1, LEAST_AHEAD
        """Where the last request ended, and how much the next one is for."""

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._num_bytes - self._position)]
        done = 0
        while done < len(view):
            done += self._take(view[done:])
        return done

    def _take(self, view: memoryview) -> int:
        """Of what is here, or has been asked for now."""
        at = self._position - self._ahead_at
        if not 0 <= at < len(self._ahead):
            is_next = 0 <= self._position - self._next <= GAP_BYTES and self._next >= 0
            self._ahead_bytes = min(GROWTH * self._ahead_bytes, MOST_AHEAD) if is_next else LEAST_AHEAD
            self._next = min(self._position + max(len(view), self._ahead_bytes), self._num_bytes)
            if self._next == self._position + len(view):
                self._fill(view)
                return self._move(len(view))
            self._ahead = memoryview(bytearray(self._next - self._position))
            self._ahead_at, at = self._position, 0
            self._fill(self._ahead)
        found = self._ahead[at : at + len(view)]
        view[: len(found)] = found
        return self._move(len(found))

    def _fill(self, view: memoryview) -> None:
        if (count := self._owner.read_into(self._path, self._position, view)) < len(view):
            self._ahead, self._next = memoryview(b""), -1
            raise OSError(errno.EIO, f"ends after {self._position + count:,} bytes", self._path)

    def _move(self, num_bytes: int) -> int:
        self._position += num_bytes
        return num_bytes

    def readall(self) -> bytes:
        whole = bytearray(max(0, self._num_bytes - self._position))
        self.readinto(whole)
        return bytes(whole)


@contextmanager
def _room_told() -> Iterator[None]:
    """It is not the store that is full."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        where = f"{tempfile.gettempdir()} on {socket.gethostname()} (TMPDIR)"
        raise OSError(error.errno, f"{error.strerror}: in {where}, where it is gathered first") from error


def _put_and_rename(fs: Any, local: str, full: str) -> None:
    folder, name = posixpath.split(full)
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}{TEMPORARY}"
    fs.makedirs(folder, exist_ok=True)
    try:
        fs.put_file(local, temporary)
        if fs.exists(full):  # who takes the name between this line and the next one goes unnoticed
            raise FileExistsError(errno.EEXIST, "it is there already, and is never replaced")
        _move(fs, temporary, full)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise


def _move(fs: Any, old: str, new: str) -> None:
    """By the store's own act, if it has one; fsspec's copies, and takes a name for a pattern."""
    from fsspec import AbstractFileSystem

    if type(fs).mv is not AbstractFileSystem.mv:
        fs.mv(old, new)
    else:
        fs.cp_file(old, new)
        fs.rm_file(old)


def _is_taken(error: OSError) -> bool:
    """Whether a conditional put was refused, in whatever words."""
    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", "")
    return isinstance(error, FileExistsError) or code in ("PreconditionFailed", "ConditionalRequestConflict")


def _writer_of(fs: Any, full: str) -> str | None:
    """None: there is no such object."""
    try:
        found = fs.metadata(full) if hasattr(fs, "metadata") else fs.info(full).get("metadata")
    except FileNotFoundError:
        return None
    return str((found or {}).get(_WRITER, ""))


def _status(path: str, one: dict[str, Any]) -> FileStatus:
    is_dir = one["type"] == "directory"
    return FileStatus(
        path=path,
        name=posixpath.basename(path),
        length=0 if is_dir else int(one.get("size") or 0),
        is_dir=is_dir,
        modified_at=_moment(next((one[name] for name in _MOMENTS if one.get(name)), 0.0)),
        permission=0,
        owner="",
        id=str(next((one[name] for name in _IDS if one.get(name)), "")),
    )


def _moment(told: Any) -> float:
    """Seconds since 1970, however a client tells it."""
    if isinstance(told, str):
        from datetime import datetime

        with suppress(ValueError):
            told = datetime.fromisoformat(told)
    return float(told.timestamp() if hasattr(told, "timestamp") else told)


def _told(error: Exception) -> tuple[int, str]:
    """Number and words for what a client, or the network below it, has raised."""
    words = (str(error.strerror or error) if isinstance(error, OSError) else str(error)).split("\n")[0]
    for kind, number in _KINDS:
        if isinstance(error, kind):
            return number, words if number == errno.EACCES and words else os.strerror(number)
    if words == _NO_WORDS:
        return errno.EACCES, f"{words}, as where credentials have expired, or are those of another region"
    if isinstance(error, OSError) and error.errno:
        # S3 is busy where it cannot answer; all its clients are to ask again.
        return errno.EAGAIN if error.errno == errno.EBUSY else error.errno, words
    name = type(error).__name__
    if any(part in name for part in ("Credential", "Authentication", "RefreshError")):
        return errno.EACCES, words
    if isinstance(error, ValueError) or "Validation" in name:
        return errno.EINVAL, words
    number, below = reason(error)
    return (number if is_away(OSError(number, "")) else errno.EAGAIN), f"{name}: {words or below}"
