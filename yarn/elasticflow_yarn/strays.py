"""Containers that YARN runs and Skein has forgotten: it drops orders to end now and then. Pure."""

from __future__ import annotations

from collections.abc import Collection

STRANGE_S, STRANGE_VIEWS = 15.0, 3
"""So long, and in so many looks, YARN and Skein must differ about a container."""


class Strays:
    """own: YARN's id of the ApplicationMaster's container, which is none."""

    def __init__(self, own: str) -> None:
        self.living: frozenset[str] = frozenset()
        """YARN's ids of all that run, as Skein says."""
        self._own = own
        self._seen: dict[str, tuple[float, int]] = {}
        """Since when, and in how many looks."""

    def look(self, containers: Collection[str], now_s: float) -> list[str]:
        """What YARN runs. Returns those to end."""
        before, self._seen, due = self._seen, {}, []
        for yarn_id in sorted(set(containers) - self.living - {self._own}):
            since_s, views = before.get(yarn_id, (now_s, 0))
            if now_s - since_s >= STRANGE_S and views + 1 >= STRANGE_VIEWS:
                due.append(yarn_id)
            else:
                self._seen[yarn_id] = since_s, views + 1
        return due
