"""One master in the row of a run's masters: the journal leads from each to the next, and the fence ends all
but the newest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Set

from elasticflow.master.fence import Fence, Superseded
from elasticflow.master.journal import Journal, JournalWriter
from elasticflow.run.folder import RunDir


class Succession:
    """fence: None where nobody claims a term, for there is one machine. before: what the master before wrote.

    remembered: makes what the next one begins with, of what this one knows just then.
    """

    def __init__(
        self, run: RunDir, fence: Fence | None, before: Journal | None, remembered: Callable[[], Journal]
    ) -> None:
        self._fence, self._remembered = fence, remembered
        self._journal = JournalWriter(run.journal, self.check)
        self.adopts = before is not None
        """Whether there are members of a master before; else it begins, or goes on from a checkpoint."""
        self.term = fence.term if fence else 0
        """0: there is none."""
        self.in_another_term = before is not None and before.term != self.term
        self.incarnation = before.incarnation + 1 if before else 1

    @property
    def fds(self) -> list[int]:
        """Readable when ``turn`` has something to do."""
        return [self._journal.fd, *([self._fence.fd] if self._fence else [])]

    def turn(self, ready: Set[object]) -> None:
        """Raises Superseded if there is a newer master."""
        if self._fence and self._fence.fd in ready:
            self._fence.check()
        self._journal.turn()

    def check(self) -> None:
        """Raises Superseded if there is a newer master, OSError if that cannot be seen."""
        if self._fence:
            self._fence.check()

    def check_if_seen(self) -> None:
        """Raises Superseded if there is a newer master, as far as can be seen."""
        with contextlib.suppress(OSError):
            self.check()

    def write(self) -> None:
        """For the next one, soon."""
        self._journal.write(self._remembered)

    def write_now(self) -> None:
        """For the next one, before anything else happens. Raises OSError, Superseded."""
        self._journal.write_now(self._remembered())

    def write_if_possible(self) -> None:
        """The same; if it cannot be, that is seen elsewhere."""
        with contextlib.suppress(OSError, Superseded):
            self.write_now()

    def close(self) -> None:
        if self._fence:
            self._fence.close()
        self._journal.close()
