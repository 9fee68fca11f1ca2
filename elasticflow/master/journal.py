"""What a master writes down, so that the next one can go on in its place: at commits and changes of
membership, never for a step. It may lag behind; what it does not tell, the members do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from elasticflow.errors import RunError
from elasticflow.master.deciding.takeover import Memory
from elasticflow.master.status import StoryMemory
from elasticflow.process.decoding import from_json
from elasticflow.process.texts import as_json
from elasticflow.run import reserve
from elasticflow.run.folder import RunPath, read_bounded, replace
from elasticflow.storage.background import Background
from elasticflow.wire.keys import MasterKeys


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """incarnation: how many masters the run has had. port: where the last one listened. term: see ``fence``;
    0: it has none. keys: the public one of the master's: what was begun or resumed since has others."""

    incarnation: int
    port: int
    memory: Memory
    story: StoryMemory
    term: int = 0
    keys: str = ""

    def is_of(self, keys: MasterKeys) -> bool:
        """Whether a master with these keys wrote it; one that has lost its folder may write here, too."""
        return self.keys in (keys.master_public, "")  # "": by an ElasticFlow that did not say so


def read_journal(path: RunPath, keys: MasterKeys) -> Journal | None:
    """What the last master with these keys wrote down; None if nothing. Raises RunError."""
    try:
        journal = from_json(read_bounded(path), Journal)
        return journal if journal.is_of(keys) else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: the master's journal cannot be read: {error}") from error


class JournalWriter:
    """Writes in the background: no hanging disk holds up who writes. Only the newest counts.

    check: asked before each, whether it may still be written; what it raises is raised.
    """

    def __init__(self, path: RunPath, check: Callable[[], None] = lambda: None) -> None:
        self._path, self._check = path, check
        self._background = Background(patience_s=float("inf"))
        self._waiting: Callable[[], Journal] | None = None
        self._lock = threading.Lock()
        self._asked = self._written = 0
        """Numbers of the newest journal that was to be written, and that was."""

    @property
    def fd(self) -> int:
        """Readable when ``turn`` has something to do."""
        return self._background.fd

    def write(self, journal: Callable[[], Journal]) -> None:
        """Has it written, soon: as it is then."""
        self._waiting = journal
        self.turn()

    def write_now(self, journal: Journal) -> None:
        """Writes it before anything else happens. Raises OSError, and what ``check`` does."""
        self._replace(*self._numbered(journal))

    def turn(self) -> None:
        """Goes on with what is still to be written."""
        self._background.turn()
        if self._waiting is not None and not self._background.busy:
            number, data = self._numbered(self._waiting())
            self._waiting = None
            self._background.submit(
                lambda: self._replace(number, data), lambda result, error: None, lambda text: None
            )

    def close(self) -> None:
        """Writes no more; does not wait for a disk that hangs."""
        self._background.close()

    def _numbered(self, journal: Journal) -> tuple[int, bytes]:
        self._asked += 1
        return self._asked, as_json(journal)

    def _replace(self, number: int, data: bytes) -> None:
        """Never puts an older journal in the place of a newer one."""
        with self._lock:
            if number > self._written:
                self._check()
                reserve.spend(self._path.parent, lambda: replace(self._path, data))
                self._written = number
