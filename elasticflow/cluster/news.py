"""What a backend has to tell its master and people: each piece once."""

from __future__ import annotations

from typing import TypeVar

from elasticflow.cluster.contract import Ended

T = TypeVar("T")


class SizingNews:
    """Since the last look: whoever takes something empties it, see ``taken``."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        """Members that were wanted and are over."""
        self.placed: list[str] = []
        """Members that have got their places."""
        self.returns: list[tuple[str, str]] = []
        """Workers that are to leave and be replaced later, and why."""
        self.notes: list[tuple[str, str]] = []
        """What people should read: kind (``info``, ``warning``) and text."""

        self._noted: set[str] = set()

    def note(self, kind: str, text: str, *, once: bool = False) -> None:
        """once: not if it was told so before."""
        if not (once and text in self._noted):
            self.notes.append((kind, text))
        if once:
            self._noted.add(text)


def taken(news: list[T]) -> list[T]:
    """What there is; nothing is left."""
    found = news[:]
    news.clear()
    return found
