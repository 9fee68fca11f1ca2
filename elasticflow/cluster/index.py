"""Which run a cluster's job is, or was, the leader of: clusters forget jobs, and people name them.

One small file a job, in a folder of the user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from elasticflow.run.folder import RunPath, publish

KEPT = 1000


class IndexEntry(msgspec.Struct, frozen=True):
    """A leader's job."""

    id: int | str
    name: str
    run_dir: str


class JobIndex:
    """age: of a file, to sort by, the newest the greatest; None: it is no entry. Raises OSError."""

    def __init__(self, folder: RunPath, age: Callable[[RunPath], Any]) -> None:
        self.folder, self._age = folder, age

    def add(self, entry: IndexEntry) -> None:
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

    def _newest_first(self) -> list[RunPath]:
        aged = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                aged.append((self._age(path), path))
        known = [pair for pair in aged if pair[0] is not None]
        return [path for _, path in sorted(known, key=lambda pair: pair[0], reverse=True)]

    def _read(self, path: RunPath) -> IndexEntry | None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, msgspec.MsgspecError):
            return msgspec.json.decode(path.read_bytes(), type=IndexEntry)
        return None
