"""A place for a run's checkpoints that is not its folder: another one, on HDFS, or in an object store.

It is one run's alone: the first file there says whose, and is put only where there is none.
"""

from __future__ import annotations

import os
import posixpath
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from elasticflow.checkpoint.catalog import commits
from elasticflow.checkpoint.names import ROOT, ROWS
from elasticflow.errors import CheckpointError, ConfigError
from elasticflow.process.retry import is_curable
from elasticflow.storage import Storage, is_url, storage_of
from elasticflow.storage.remote import client_of

OWNER = "owner.json"
MOST_BYTES = 1 << 16
"""Of that file."""


class _Owner(msgspec.Struct, frozen=True):
    """Whose checkpoints lie here. run: its folder."""

    run: str
    host: str


def below(base: str, run: str | os.PathLike[str]) -> str:
    """Where below ``base`` a run in this folder has its checkpoints: they are called as the run is."""
    name = posixpath.basename(os.fspath(run).rstrip("/"))
    return f"{base.rstrip('/')}/{name}" if is_url(base) else os.path.join(os.path.abspath(base), name)


def settle(place: str, run: str) -> None:
    """Has the checkpoints of a new run, whose folder this is, lie at ``place``, where nothing is yet.

    Raises ConfigError if somebody else's things are there, or it cannot be used.
    """
    try:
        _claim(place, run if is_url(run) else os.path.abspath(run))
    except OSError as error:
        words = error.strerror or error
        raise ConfigError(f"checkpoint_dir: {place}: cannot be used: {words}.") from error


def forsake(place: str) -> None:
    """Leaves nothing there of a run that did not begin, as far as that can be done."""
    with suppress(OSError, ConfigError):
        storage = storage_of(place)
        for name in (ROOT, ROWS, OWNER):
            storage.remove(name)
        if not is_url(place):  # elsewhere there is no folder without files, or it is in nobody's way
            os.rmdir(place)


def _claim(place: str, run: str) -> None:
    _make(place)
    storage = storage_of(place)
    mine = _Owner(run, socket.gethostname())
    try:
        with storage.create(OWNER) as file:
            file.write(msgspec.json.encode(mine))
    except FileExistsError:
        with storage.open(OWNER) as file:
            owner = file.read(MOST_BYTES)
        if owner != msgspec.json.encode(mine) or _holds_any(storage):
            raise ConfigError(
                f"checkpoint_dir: {place}: holds the checkpoints of a run already, {_named(owner)}; choose "
                "another --run-dir, whose name they have, or another checkpoint_dir."
            ) from None
    others = [name for name in storage.list() if name not in (OWNER, ROOT, ROWS)]
    if others:
        raise ConfigError(f"checkpoint_dir: {place}: is not empty: there is {others[0]!r}; choose another.")


def _make(place: str) -> None:
    if is_url(place):
        client, path = client_of(place)
        client.mkdirs(path)
    else:
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)


def _holds_any(storage: Storage) -> bool:
    try:
        return bool(commits(storage))
    except CheckpointError as error:
        if is_curable(error):
            raise
        return True


def _named(owner: bytes) -> str:
    try:
        found = msgspec.json.decode(owner, type=_Owner)
    except msgspec.MsgspecError:
        return "which cannot be read"
    return f"{found.run} (begun on {found.host})"
