"""Which run a cluster's job is, or was, the leader of: clusters forget jobs, and people name them.

One small file a job, in a folder of the user's. A cluster's own module ``index`` has two functions:
``entries``, those whose id or name is a text, or all for "", which raises UnknownError where nobody answers
who would know; and ``unasked``, why runs on that cluster cannot be known here.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from elasticflow.errors import UnknownError
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import RunPath, publish

KEPT = 1000
"""So many runs are remembered, the newest: each is a file, and a list of them reads all."""
FURTHER = 30
"""Who looks for a name looks at so many jobs more, for others of that name, once one is found."""


class IndexEntry(msgspec.Struct, frozen=True):
    """A leader's job."""

    id: int | str
    name: str
    run_dir: str
    begun_at: float = 0.0
    """When it was submitted, or began, in seconds since 1970; 0: not known."""


class RunIndex(Protocol):
    """See the module's docstring."""

    def entries(self, text: str) -> Iterator[IndexEntry]: ...

    def unasked(self) -> str: ...


class FoundRuns(NamedTuple):
    """entries: one a run, the newest first. silent: who does not answer, and may know of more."""

    entries: list[IndexEntry]
    silent: list[str]


def look_up(text: str, indexes: Iterable[RunIndex]) -> FoundRuns:
    """Runs whose job has this id or name, on all clusters; "": all that are known."""
    found: dict[str, IndexEntry] = {}
    silent = []
    for index in indexes:
        try:
            for entry in index.entries(text):
                found.setdefault(entry.run_dir, entry)
        except UnknownError as error:
            silent.append(str(error))
    return FoundRuns(sorted(found.values(), key=lambda entry: entry.begun_at, reverse=True), silent)


class JobIndex:
    """age: of a file, to sort by, the newest the greatest; None: it is no entry. Raises OSError."""

    def __init__(self, folder: RunPath, age: Callable[[RunPath], Any]) -> None:
        self.folder, self._age = folder, age

    def add(self, entry: IndexEntry) -> None:
        entry = msgspec.structs.replace(entry, begun_at=time.time())
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(self.folder / f"{entry.id}.json", entry)
        for path in self._newest_first()[KEPT:]:
            path.unlink(missing_ok=True)

    def get(self, id: str) -> IndexEntry | None:
        """That of one job."""
        return self._read(self.folder / f"{id}.json")

    def __iter__(self) -> Iterator[IndexEntry]:
        """The newest first."""
        return (entry for path in self._newest_first() if (entry := self._read(path)))

    def meant(self, text: str, is_meant: Callable[[IndexEntry], bool]) -> Iterator[IndexEntry]:
        """Those that a text means, all for "", the newest first."""
        left = KEPT
        for entry in self:
            if not left:
                return
            left -= 1
            if not text:
                yield entry
            elif is_meant(entry):
                left = min(left, FURTHER)
                yield entry

    def _newest_first(self) -> list[RunPath]:
        aged = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                aged.append((self._age(path), path))
        known = [pair for pair in aged if pair[0] is not None]
        return [path for _, path in sorted(known, key=lambda pair: pair[0], reverse=True)]

    def _read(self, path: RunPath) -> IndexEntry | None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, msgspec.MsgspecError):
            entry = from_json(path.read_bytes(), IndexEntry)
            return entry if entry.begun_at else msgspec.structs.replace(entry, begun_at=path.stat().st_mtime)
        return None


class HomeIndex:
    """The index of a cluster whose nodes may have other homes than who submits: where this user's home has no
    word of a job, the cluster is asked, which has the run's folder with it.

    cluster: a name for it. told: what that knows now, the newest first; raises UnknownError if it is silent.
    """

    def __init__(self, cluster: str, told: Callable[[], Iterator[IndexEntry]]) -> None:
        self._cluster, self._told = cluster, told

    def folder(self) -> Path:
        """Where the files are. Raises RuntimeError where this user has no home."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state, "elasticflow", self._cluster)

    def add(self, id: int | str, name: str, run_dir: Path) -> None:
        """Remembers a job; a home that cannot be written to is no reason not to run it."""
        with contextlib.suppress(OSError, RuntimeError):
            JobIndex(self.folder(), _modified_at).add(IndexEntry(id, name, str(run_dir)))

    def entries(self, text: str) -> Iterator[IndexEntry]:
        """See the module's docstring. What this user's home remembers comes first."""
        found = False
        for entry in self._kept(text):
            found = True
            yield entry
        if not (found and text):
            yield from (entry for entry in self._told() if not text or _is_meant(text, entry))

    def _kept(self, text: str) -> Iterator[IndexEntry]:
        try:
            yield from JobIndex(self.folder(), _modified_at).meant(text, partial(_is_meant, text))
        except (FileNotFoundError, NotADirectoryError, RuntimeError):
            return
        except OSError as error:
            raise UnknownError(
                f"{self.folder()}, where jobs are remembered, cannot be read: {error}"
            ) from error


def _is_meant(text: str, entry: IndexEntry) -> bool:
    return text == str(entry.id) or (text == entry.name and not _is_gone(entry.run_dir))


def _is_gone(run_dir: str) -> bool:
    """Whether it is sure that this folder is not there."""
    try:
        return not stat.S_ISDIR(os.stat(run_dir).st_mode)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))


def _modified_at(path: RunPath) -> float | None:
    return path.stat().st_mtime if path.suffix == ".json" else None
