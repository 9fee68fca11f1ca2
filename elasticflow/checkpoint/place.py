"""A place for a run's checkpoints that is not its folder: another one, on HDFS, or in an object store.

It is one run's alone: the first file there says whose, and is put only where there is none. The run has a
copy of it in its folder: where they differ, another goes on with these checkpoints by now, and this one ends.
"""

from __future__ import annotations

import os
import posixpath
import secrets
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


class PlaceOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose checkpoints lie at a place. run: its folder. host: where that was made. id: of this claim; of an
    ElasticFlow before there were any, ""."""

    run: str
    host: str
    id: str = ""

    @classmethod
    def of(cls, run: str, id: str = "") -> PlaceOwner:
        """A run that lays claim to a place. id: of its claim of before, if it has one."""
        return cls(_absolute(run), socket.gethostname(), id or secrets.token_hex(8))

    def __str__(self) -> str:
        return f"{self.run} (begun on {self.host})"

    def is_there(self) -> bool:
        """Whether there is a run in that folder, or may be, since it cannot be seen from here."""
        if is_url(self.run):
            return storage_of(self.run).exists("run.json")
        return self.host != socket.gethostname() or os.path.exists(os.path.join(self.run, "run.json"))

    def is_same(self, other: PlaceOwner) -> bool:
        """Whether both mean one folder, by whatever name."""
        with suppress(OSError):
            return self.run == other.run or os.path.samefile(self.run, other.run)
        return False


UNKNOWN = PlaceOwner("an unknown run", "an unknown host")


def normal(base: str) -> str:
    """A ``checkpoint_dir`` as it is compared and kept. Raises ConfigError for a URL that cannot be used."""
    check_url(base)
    return base.rstrip("/") if is_url(base) else os.path.abspath(base)


def below(base: str, run: str) -> str:
    """Where below ``base`` a run in this folder has its checkpoints: they are called as the run is."""
    name = posixpath.basename(_absolute(run))
    return f"{normal(base)}/{name}"


def settle(place: str, run: str) -> PlaceOwner:
    """Has the checkpoints of a new run, whose folder this is, lie at ``place``, where nothing is yet.

    Returns the claim. Raises ConfigError if somebody else's things are there, or it cannot be used; then
    nothing has changed.
    """
    mine = PlaceOwner.of(run)
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
        if held or (owner.run, owner.host) != (mine.run, mine.host):
            go_on = f"go on with it by --resume --run-dir {place}, or " if _may_name(run, place) else ""
            raise ConfigError(
                f"checkpoint_dir: {place}: holds the checkpoints of a run already, {owner}; {go_on}choose "
                "another --run-dir, whose name they have, or another checkpoint_dir."
            )
    return owner


def check(place: str, run: str, claim: str) -> PlaceOwner:
    """Has ``place`` still be that of a run that goes on, whose folder may have been moved.

    claim: id of its own, "" if it has none. A copy of a run's folder leads to the checkpoints of the
    original, and must not go on with them; nor must a run in whose place another has taken them over.
    Returns the claim that holds now. Raises ConfigError.
    """
    mine = PlaceOwner.of(run, claim)
    with _usable(place):
        storage = storage_of(place)
        names = _names(storage)
        if OWNER not in names and not _holds_any(storage, names):
            raise ConfigError(
                f"checkpoint_dir: {place}: there is nothing of this run any more. Is it the right store (its "
                "address, the account)? If it was removed, begin anew in another --run-dir."
            )
        owner = _owner(storage) if OWNER in names else _put_owner(storage, mine)
        if claim and owner.id not in ("", claim):
            if _may_name(run, place):
                advice = (
                    f"To have it go on here after all, in a folder of its own: --resume --run-dir {place}."
                )
            else:
                advice = f"'elasticflow checkpoint copy {owner.run} FOLDER' makes a run of its own of them."
            raise ConfigError(
                f"{place}: {owner} goes on with these checkpoints, and this run not any more. {advice}"
            )
        if owner.is_same(mine):
            return owner
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
        return owner


def take_over(place: str, run: str) -> PlaceOwner:
    """Has a run in this folder go on with what lies there, whoever has until now: that one ends.

    Returns the claim. Raises ConfigError.
    """
    mine = PlaceOwner.of(run)
    with _usable(place):
        storage = storage_of(place)
        try:
            storage.remove(OWNER)
        except RemovedError:  # as above
            pass
        except PermissionError as error:
            raise ConfigError(
                f"{place}: {OWNER} may not be removed, and nobody else can go on with these checkpoints "
                f"before it is: {error.strerror}. Try again as somebody who may, or once it is removed."
            ) from error
        if (owner := _put_owner(storage, mine)) != mine:
            raise ConfigError(f"{place}: {owner} takes over these checkpoints at the same time.")
    return mine


def owner_of(place: str) -> PlaceOwner | None:
    """Whose checkpoints lie there; None: nobody's. Raises ConfigError, OSError."""
    storage = storage_of(place)
    names = _names(storage)
    if OWNER in names:
        with suppress(FileNotFoundError):  # somebody takes it over just now
            return _owner(storage)
    return UNKNOWN if _holds_any(storage, names) else None


def lost_to(place: str, claim: str) -> PlaceOwner | None:
    """Who goes on by now with the checkpoints there, if not the run whose claim this is. Raises OSError."""
    storage = storage_of(place)
    try:
        owner = _owner(storage)
    except FileNotFoundError:  # somebody has removed it, as ``check`` advises
        return None
    return owner if owner.id not in ("", claim) else None


def forsake(place: str, run: str) -> None:
    """Leaves nothing there of this run, which did not begin, as far as that can be done."""
    with suppress(OSError, ConfigError):
        storage = storage_of(place)
        if OWNER not in _names(storage) or not _owner(storage).is_same(PlaceOwner(_absolute(run), "")):
            return
        for name in (ROOT, ROWS, OWNER):
            storage.remove(name)
        if not is_url(place):  # elsewhere there is no folder without files, or it is in nobody's way
            os.rmdir(place)


def _may_name(run: str, place: str) -> bool:
    """Whether a run may be named by where its checkpoints lie: on YARN its URL is that of its folder."""
    return is_url(place) and not is_url(run)


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


def _put_owner(storage: Storage, mine: PlaceOwner) -> PlaceOwner:
    """Whose the place is: mine, if it was nobody's."""
    try:
        with storage.create(OWNER) as file:
            file.write(msgspec.json.encode(mine))
        return mine
    except FileExistsError:
        return _owner(storage)


def _owner(storage: Storage) -> PlaceOwner:
    with storage.open(OWNER) as file:
        try:
            return from_json(file.read(MOST_BYTES), PlaceOwner)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return UNKNOWN


def _holds_any(storage: Storage, names: list[str]) -> bool:
    """Checkpoints. names: that are there."""
    try:
        return ROOT in names and bool(commits(storage))
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError) and is_curable(error):
            raise error.__cause__ from error  # it could not be asked
        return True
