"""A place for a run's checkpoints that is not its folder: another one, on HDFS, or in an object store.

It is one run's alone: the first file there says whose, and is put only where there is none.
"""

from __future__ import annotations

import os
import posixpath
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Whose checkpoints lie at a place. run: its folder. host: where that was made."""

    run: str
    host: str

    def __str__(self) -> str:
        return f"{self.run} (begun on {self.host})"

    def is_there(self) -> bool:
        """Whether there is a run in that folder, or may be, since it cannot be seen from here."""
        if is_url(self.run):
            return storage_of(self.run).exists("run.json")
        return self.host != socket.gethostname() or os.path.exists(os.path.join(self.run, "run.json"))


def below(base: str, run: str) -> str:
    """Where below ``base`` a run in this folder has its checkpoints: they are called as the run is."""
    name = posixpath.basename(_absolute(run))
    return f"{base.rstrip('/')}/{name}" if is_url(base) else os.path.join(os.path.abspath(base), name)


def settle(place: str, run: str) -> None:
    """Has the checkpoints of a new run, whose folder this is, lie at ``place``, where nothing is yet.

    Raises ConfigError if somebody else's things are there, or it cannot be used.
    """
    mine = _Owner(_absolute(run), socket.gethostname())
    with _usable(place):
        _make(place)
        storage = storage_of(place)
        if (owner := _put_owner(storage, mine)) != mine or _holds_any(storage):
            raise ConfigError(
                f"checkpoint_dir: {place}: holds the checkpoints of a run already, {owner}; choose another "
                "--run-dir, whose name they have, or another checkpoint_dir."
            )
        if others := [name for name in storage.list() if name not in (OWNER, ROOT, ROWS)]:
            raise ConfigError(
                f"checkpoint_dir: {place}: is not empty: there is {others[0]!r}; choose another."
            )


def check(place: str, run: str) -> None:
    """Has ``place`` still be that of a run that goes on, whose folder may have been moved.

    A copy of a run's folder leads to the checkpoints of the original, and must not go on with them. Raises
    ConfigError.
    """
    mine = _Owner(_absolute(run), socket.gethostname())
    with _usable(place):
        storage = storage_of(place)
        owner = _put_owner(storage, mine)
        if owner.run == mine.run:
            return
        if owner.is_there():
            raise ConfigError(
                f"{place}: holds the checkpoints of {owner}, and this is {mine.run}. Of a copy 'elasticflow "
                f"checkpoint copy {owner.run} FOLDER' makes a run of its own. If the folder was moved from "
                f"there, remove {OWNER} at that place."
            )
        storage.remove(OWNER)
        _put_owner(storage, mine)


def forsake(place: str) -> None:
    """Leaves nothing there of a run that did not begin, as far as that can be done."""
    with suppress(OSError, ConfigError):
        storage = storage_of(place)
        for name in (ROOT, ROWS, OWNER):
            storage.remove(name)
        if not is_url(place):  # elsewhere there is no folder without files, or it is in nobody's way
            os.rmdir(place)


def _absolute(run: str) -> str:
    return run.rstrip("/") if is_url(run) else os.path.abspath(run)


@contextmanager
def _usable(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"checkpoint_dir: {place}: cannot be used: {error.strerror or error}.") from error


def _make(place: str) -> None:
    if is_url(place):
        client, path = client_of(place)
        client.mkdirs(path)
    else:
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)


def _put_owner(storage: Storage, mine: _Owner) -> _Owner:
    """Whose the place is: mine, if it was nobody's."""
    try:
        with storage.create(OWNER) as file:
            file.write(msgspec.json.encode(mine))
        return mine
    except FileExistsError:
        with storage.open(OWNER) as file:
            try:
                return msgspec.json.decode(file.read(MOST_BYTES), type=_Owner)
            except msgspec.MsgspecError:
                return _Owner("an unknown run", "an unknown host")


def _holds_any(storage: Storage) -> bool:
    try:
        return bool(commits(storage))
    except CheckpointError as error:
        if is_curable(error):
            raise
        return True
