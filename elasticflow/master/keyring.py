"""What each member is given: its own keys before it starts, and with an Assignment a way to each server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from elasticflow.run.folder import RunDir
from elasticflow.storage.background import Background
from elasticflow.wire.keys import MasterKeys
from elasticflow.wire.messages import Assignment


class Keyring:
    """Keys are left in the run's folder in a thread of its own: nobody who starts waits for a commit.

    ``fd`` becomes readable when there is news, and ``turn`` tells it. trouble: told of a member that waits
    for its keys why they cannot be written just now; "" once it waits no more.
    """

    def __init__(
        self, run: RunDir, keys: MasterKeys, patience_s: float, trouble: Callable[[str, str], None]
    ) -> None:
        self._run, self._keys, self._trouble = run, keys, trouble
        self.public = keys.master_public
        self._writing = Background(patience_s)
        self.fd, self.turn, self.close = self._writing.fd, self._writing.turn, self._writing.close

    def give(self, name: str, done: Callable[[str], None], *, waits: bool) -> None:
        """Leaves a member's keys for it. done: told "" once they are there, or why they cannot be.

        waits: as the run begins nobody is kept waiting, and a cluster that has given the first places already
        takes back those of whom the backend does not know at once.
        """
        if waits:
            with contextlib.suppress(OSError):  # else as any other
                self._run.hand_out(self._keys.of(name))
                return done("")

        def end(_: None, error: str) -> None:
            self._trouble(name, "")
            done(error)

        self._writing.submit(
            lambda: self._run.hand_out(self._keys.of(name)),
            end,
            lambda text: self._trouble(name, text) if text else None,
        )

    def told(self, name: str, assignment: Assignment) -> Assignment:
        """An assignment as this member is to get it."""
        servers = (info.name for info in assignment.servers)
        passes = self._keys.passes(name, servers, assignment.generation)
        return msgspec.structs.replace(assignment, passes=passes)
