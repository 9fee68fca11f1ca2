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
from elasticflow.process.decoding import from_json
from elasticflow.process.retry import RemovedError, is_curable
from elasticflow.storage import Storage, is_url, storage_of
from elasticflow.storage.remote import client_of
from elasticflow.storage.urls import check as check_url

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

    def is_same(self, other: _Owner) -> bool:
        """Whether both mean one folder, by whatever name."""
        with suppress(OSError):
            return self.run == other.run or os.path.samefile(self.run, other.run)
        return False


UNKNOWN = _Owner("an unknown run", "an unknown host")


def normal(base: str) -> str:
    """A ``checkpoint_dir`` as it is compared and kept. Raises ConfigError for a URL that cannot be used."""
    check_url(base)
    return base.rstrip("/") if is_url(base) else os.path.abspath(base)


def below(base: str, run: str) -> str:
    """Where below ``base`` a run in this folder has its checkpoints: they are called as the run is."""
    name = posixpath.basename(_absolute(run))
    return f"{normal(base)}/{name}"


def settle(place: str, run: str) -> None:
    """Has the checkpoints of a new run, whose folder this is, lie at ``place``, where nothing is yet.

    Raises ConfigError if somebody else's things are there, or it cannot be used; then nothing has changed.
    """
    mine = _Owner(_absolute(run), socket.gethostname())
    if place.startswith("memory://"):
        raise ConfigError(f"checkpoint_dir: {place}: is in this process's memory, and no other sees it.")
    with _usable(place):
        _make(place)
        storage = storage_of(place)
        names = _names(storage)
        if others := [name for name in names if name not in (OWNER, ROOT, ROWS)]:
            raise ConfigError(
                f"checkpoint_dir: {place}: is not empty: there is {others[0]!r}; choose another."
            )
        held = _holds_any(storage, names)
        if OWNER in names:
            owner = _owner(storage)
        else:
            owner = UNKNOWN if held else _put_owner(storage, mine)  # if nobody else is faster
        if held or owner != mine:
            raise ConfigError(
                f"checkpoint_dir: {place}: holds the checkpoints of a run already, {owner}; choose another "
                "--run-dir, whose name they have, or another checkpoint_dir."
            )


def check(place: str, run: str) -> None:
    """Has ``place`` still be that of a run that goes on, whose folder may have been moved.

    A copy of a run's folder leads to the checkpoints of the original, and must not go on with them. Raises
    ConfigError.
    """
    mine = _Owner(_absolute(run), socket.gethostname())
    with _usable(place):
        storage = storage_of(place)
        names = _names(storage)
        if OWNER not in names and not _holds_any(storage, names):
            raise ConfigError(
                f"checkpoint_dir: {place}: there is nothing of this run any more. Is it the right store (its "
                "address, the account)? If it was removed, begin anew in another --run-dir."
            )
        owner = _owner(storage) if OWNER in names else _put_owner(storage, mine)
        if owner.is_same(mine):
            return
        if owner.is_there():
            raise ConfigError(
                f"{place}: holds the checkpoints of {owner}, and this is {mine.run}. Of a copy 'elasticflow "
                f"checkpoint copy {owner.run} FOLDER' makes a run of its own. If the folder was moved from "
                f"there, remove {OWNER} at that place."
            )
        with suppress(RemovedError):  # in an object store nothing may be left by now
            storage.remove(OWNER)
        if (owner := _put_owner(storage, mine)) != mine:
            raise ConfigError(f"{place}: {owner} goes on with these checkpoints; this is {mine.run}.")


def forsake(place: str, run: str) -> None:
    """Leaves nothing there of this run, which did not begin, as far as that can be done."""
    with suppress(OSError, ConfigError):
        storage = storage_of(place)
        if OWNER not in _names(storage) or not _owner(storage).is_same(_Owner(_absolute(run), "")):
            return
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


def _names(storage: Storage) -> list[str]:
    """What is there. A folder of an object store in which nothing is is none."""
    try:
        return storage.list()
    except RemovedError:
        return []


def _put_owner(storage: Storage, mine: _Owner) -> _Owner:
    """Whose the place is: mine, if it was nobody's."""
    try:
        with storage.create(OWNER) as file:
            file.write(msgspec.json.encode(mine))
        return mine
    except FileExistsError:
        return _owner(storage)


def _owner(storage: Storage) -> _Owner:
    with storage.open(OWNER) as file:
        try:
            return from_json(file.read(MOST_BYTES), _Owner)
        except msgspec.MsgspecError:
            return UNKNOWN


def _holds_any(storage: Storage, names: list[str]) -> bool:
    """Checkpoints. names: that are there."""
    try:
        return ROOT in names and bool(commits(storage))
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError) and is_curable(error):
            raise error.__cause__ from error  # it could not be asked
        return True
