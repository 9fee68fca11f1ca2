"""Never two masters: each claims a term in the run's storage, and ends when there is a newer one.

A cluster that has lost sight of a node starts the run's master anew on another, while the old one may
live on. Whoever claims the highest number is the master; the older one finds out by looking, and one
that cannot look for ``lease_s`` must take it that there is another.
"""

from __future__ import annotations

import contextlib
import threading

from elasticflow.errors import RunError
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.guard import guarded_thread
from elasticflow.storage import Storage

FOLDER = "terms"
LOOK_S = 2.0
"""Between two looks: a master that is superseded may speak for so long, but looks before it commits."""
KEPT = 10
"""So many claims stay. Whoever is overtaken by as many while it claims cannot tell, and claims again."""


class Superseded(RunError):
    """Another master has this run by now."""


def claim(storage: Storage, above: int = 0) -> int:
    """A number higher than anybody has claimed, and than this. Raises OSError if the storage fails."""
    while True:
        term = max(newest(storage), above) + 1
        try:
            with storage.create(f"{FOLDER}/{term:08}"):
                pass
        except FileExistsError:
            continue
        if newest(storage) < term + KEPT:
            break  # else it may have been claimed and forgotten since this looked
    for name in storage.list(FOLDER)[:-KEPT]:
        storage.remove(f"{FOLDER}/{name}")
    return term


def newest(storage: Storage) -> int:
    """The highest number that was claimed; 0: none."""
    return max((int(name) for name in storage.list(FOLDER) if name.isdecimal()), default=0)


class Fence:
    """Looks again and again whether this term is the newest. ``fd`` is readable once it is not."""

    def __init__(self, storage: Storage, term: int, look_s: float, lease_s: float) -> None:
        self._storage, self.term = storage, term
        self._look_s, self._lease_s = look_s, lease_s
        self._closing = threading.Event()
        self._looks = 0
        """How often the storage could be looked at."""
        self._why = ""
        self._lost = FdEvent()
        self.fd = self._lost.fd
        # Two threads: looking may hang with the storage, and the lease must end all the same.
        for run in (self._look, self._watch):
            guarded_thread(run, "fence").start()

    def check(self) -> None:
        """Looks now, unless that is known. Raises Superseded if the run is another's, OSError."""
        if not self._why and (now := newest(self._storage)) > self.term:
            self._lose(f"master of term {self.term} is superseded by that of term {now}")
        if self._why:
            raise Superseded(self._why)

    def close(self) -> None:
        """Looks no more."""
        self._closing.set()

    def _look(self) -> None:
        while not self._closing.wait(self._look_s):
            with contextlib.suppress(OSError, Superseded):
                self.check()
                self._looks += 1

    def _watch(self) -> None:
        """Counts its turns, not the time: that in which this process was stopped tells nothing."""
        looks, blind_s = 0, 0.0
        while not self._closing.wait(self._look_s):
            blind_s = blind_s + self._look_s if looks == self._looks else 0.0
            looks = self._looks
            if blind_s > self._lease_s:
                self._lose(f"the storage cannot be read for {self._lease_s:g} s: another may be the master")

    def _lose(self, why: str) -> None:
        self._why = self._why or why
        self._lost.set()
