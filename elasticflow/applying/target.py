"""Where predictions go: beside others on this machine's file systems, or to HDFS or an object store."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Protocol, cast

from elasticflow.errors import ConfigError, RunError
from elasticflow.storage.directory import sync_folder
from elasticflow.storage.remote import RemoteClient, client_of
from elasticflow.storage.urls import check, is_url

SUCCESS = "_SUCCESS"
"""The file by which a folder of a store is known to be whole, as Hadoop's tools have it."""
PATIENCE_S, COPY_BYTES = 60.0, 4 << 20
_PART = re.compile(r"part-\d{6,}\.parquet")


class Target(Protocol):
    """work: the folder in which the output comes into being; a command that was killed leaves it there."""

    work: Path

    def publish(self, whole: Path) -> None:
        """Has what is complete be there, and nothing before. Raises OSError, RunError."""


def target_of(out: str, *, is_folder: bool) -> Target:
    """Raises ConfigError if there is no place for the output."""
    if is_url(out):
        return RemoteTarget(out, is_folder=is_folder)
    return LocalTarget(out, is_folder=is_folder)


class LocalTarget:
    """A file, or a folder, that gets its name by one rename."""

    def __init__(self, out: str, *, is_folder: bool) -> None:
        self._out = Path(out.rstrip("/") or "/").absolute()
        if not self._out.parent.is_dir():
            raise ConfigError(f"--out {out}: there is no folder {self._out.parent}; make it first.")
        if is_folder and self._out.exists() and (not self._out.is_dir() or any(self._out.iterdir())):
            raise ConfigError(
                f"--out {out}: is there already, and not empty; a folder cannot be replaced in one act. "
                "Remove it, or name another."
            )
        if not is_folder and self._out.is_dir():
            raise ConfigError(f"--out {out}: is a folder; name a file, or a folder without an ending.")
        self.work = self._out.with_name(f".{self._out.name}.predict")

    def __str__(self) -> str:
        return str(self._out)

    def publish(self, whole: Path) -> None:
        """By a rename."""
        if whole.is_dir() and self._out.exists():
            self._out.rmdir()
        whole.rename(self._out)
        sync_folder(self._out.parent)


class RemoteTarget:
    """An object, or a file of HDFS, that appears whole where there is none; or a folder of these, of which
    ``_SUCCESS`` is the last. The work is done below ``~/.cache/elasticflow/predict``."""

    def __init__(self, url: str, *, is_folder: bool) -> None:
        self._url = url.rstrip("/")
        check(url)
        self._client, self._path = client_of(self._url, PATIENCE_S)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.blake2b(self._url.encode(), digest_size=16).hexdigest()
        self.work = cache / "elasticflow" / "predict" / name
        try:
            self._check(is_folder)
            self.work.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {url}: cannot be used: {error}") from error

    def __str__(self) -> str:
        return self._url

    def _check(self, is_folder: bool) -> None:
        found = self._client.find(self._path)
        if found is None or self.work.is_dir():  # a command before this one may have put it there
            return
        if not found.is_dir or self._client.list(self._path):
            raise ConfigError(
                f"--out {self._url}: is there already, and cannot be replaced there in one act. Remove it, "
                "or name another."
            )

    def publish(self, whole: Path) -> None:
        """Where a command that was killed has put all of it, that stays; parts alone are replaced.

        Raises RunError where anything else is there by now.
        """
        found = self._client.find(self._path)
        if not whole.is_dir():
            if found is None:
                self._client.mkdirs(posixpath.dirname(self._path))
                _put(self._client, whole, self._path)
            elif found.is_dir or not _is_same(self._client, whole, self._path):
                raise self._taken(self._path)
            return
        parts = {part.name: part for part in sorted(whole.iterdir())}
        there = [each.name for each in self._client.list(self._path)] if found else []
        if others := [name for name in there if name != SUCCESS and not _PART.fullmatch(name)]:
            raise self._taken(others[0])
        if SUCCESS in there:
            same = {SUCCESS, *parts} == set(there)
            if not same or not all(_is_same(self._client, parts[name], self._in(name)) for name in parts):
                raise self._taken(SUCCESS)
            return
        if found is None:
            self._client.mkdirs(self._path)
        for name in there:
            self._client.remove(self._in(name))
        for name, part in parts.items():
            _put(self._client, part, self._in(name))
        with self._client.create(self._in(SUCCESS)):
            pass

    def _in(self, name: str) -> str:
        return posixpath.join(self._path, name)

    def _taken(self, name: str) -> RunError:
        return RunError(f"{self._url}: somebody has put {name} there; name another --out.")


def _is_same(client: RemoteClient, source: Path, path: str) -> bool:
    """Whether what is there is what would be put."""
    with source.open("rb") as mine, io.BufferedReader(cast(io.RawIOBase, client.open(path))) as other:
        while piece := mine.read(COPY_BYTES):
            if other.read(len(piece)) != piece:
                return False
        return not other.read(1)


def _put(client: RemoteClient, source: Path, path: str) -> None:
    with source.open("rb") as file, client.create(path) as target:
        shutil.copyfileobj(file, target, COPY_BYTES)
