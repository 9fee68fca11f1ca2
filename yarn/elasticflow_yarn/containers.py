"""Which container each member of a run is, or was, in: ``containers.json`` in the run's folder.

The master writes it, those who look for logs read it. Entries of members that have ended stay: their logs do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import MASTER
from elasticflow.errors import RunError
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import RunDir, RunPath, publish

KEPT = 1000
"""Entries of so many members are kept, the last ones, and those of masters."""


class PlacedContainer(msgspec.Struct, frozen=True):
    """A member's place."""

    container: str
    """YARN's id, such as ``container_e01_1700000000000_0001_01_000003``."""
    node: str
    """``host:port`` of its NodeManager's web page."""

    @property
    def application(self) -> str:
        """Of which application the container is."""
        found = re.search(r"_(\d+_\d+)_\d+_\d+$", self.container)
        return f"application_{found[1]}" if found else ""


def with_master(before: Mapping[str, PlacedContainer], master: PlacedContainer) -> dict[str, PlacedContainer]:
    """What is known when a master has begun. Those of earlier attempts are ``master-1`` and so on."""
    placed = dict(before)
    known = placed.get(MASTER)
    if known and known.container != master.container:
        number = sum(name.startswith(f"{MASTER}-") for name in placed) + 1
        placed[f"{MASTER}-{number}"] = known
    return {**placed, MASTER: master}


def path(run: RunDir) -> RunPath:
    """Where the file lies."""
    return run.path / "containers.json"


def write(run: RunDir, placed: Mapping[str, PlacedContainer]) -> None:
    """By member, and ``master``; the newest last. Raises OSError."""
    last = set(list(placed)[-KEPT:])
    kept = {name: each for name, each in placed.items() if name in last or name.startswith(MASTER)}
    publish(path(run), kept)


def read(run: RunDir) -> dict[str, PlacedContainer]:
    """What was written last; nothing if nothing was. Raises RunError if it cannot be read."""
    try:
        return from_json(path(run).read_bytes(), dict[str, PlacedContainer])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{path(run)}: cannot be read: {error}") from error


class PlacesFile:
    """Keeps the file up to date, by a thread that writes in the run's folder. own: the master's place."""

    def __init__(self, run: RunDir, folder: Clerk[OSError], own: PlacedContainer) -> None:
        self._run, self._folder, self._own = run, folder, own
        self._told: dict[str, PlacedContainer] = {}
        """What those who look for logs can read."""
        self._writing = False

    def tell(self, running: Mapping[str, tuple[str, str]]) -> None:
        """By member: YARN's id of the container, and the address of its node."""
        places = {name: PlacedContainer(*place) for name, place in running.items()}
        places |= {MASTER: self._own} if self._own.container else {}
        new = {name: placed for name, placed in places.items() if self._told.get(name) != placed}
        if new and not self._writing:
            self._writing = True
            self._folder.order(lambda: self._write(new), lambda answer: self._written(new, answer))

    def _write(self, new: Mapping[str, PlacedContainer]) -> None:
        try:
            before = read(self._run)
        except RunError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # it is only away, and must not be written anew
            before = {}
        if MASTER in new:
            before = with_master(before, new[MASTER])
        write(self._run, {**before, **new})

    def _written(self, new: dict[str, PlacedContainer], answer: OSError | None) -> None:
        self._writing = False
        self._told |= {} if isinstance(answer, OSError) else new  # the next poll tries again
