"""What a run shows to those who may not ask its master: its status, in a file, every few seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticflow.master.journal import JournalWriter
from elasticflow.run.folder import RunDir

EVERY_S = 5.0
"""Between two statuses: each is a file of a shared folder, written anew."""


class Board:
    """Hangs out a new status, if the run's settings want that. Never waits for a disk."""

    def __init__(self, run: RunDir, share: str) -> None:
        self._writer = JournalWriter(run.shown) if share == "group" else None
        self._next_s = 0.0

    def look(self, now_s: float, status: Callable[[], Any]) -> None:
        """To be called now and then; ``status`` is asked when it is time."""
        if self._writer and now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._writer.write(status)

    def close(self) -> None:
        """Hangs out no more."""
        if self._writer:
            self._writer.close()
