"""Nodes on which workers fail: new ones leave them out for a while."""

from __future__ import annotations

WINDOW_S = 3600.0
"""Failures count for so long, and an exclusion lasts so long."""
TOGETHER_S = 2.0
"""Workers that fail on a node within this fail by one cause."""


class Nodes:
    """Excludes a node after ``exclude_after`` failures on it within an hour, for an hour.

    Of the nodes that ours have been on, no more than half are excluded at a time, the latest to fail
    first, but one may always be: a program that fails everywhere must not shut the cluster out. A node on
    which nothing can be started at all is shut: out after the first time, however many there are.
    """

    def __init__(self, exclude_after: int) -> None:
        self._exclude_after = exclude_after
        self._seen: set[str] = set()
        self._failures_s: dict[str, list[float]] = {}
        self._until_s: dict[str, float] = {}
        self._shut: set[str] = set()

    def saw(self, node: str) -> None:
        """One of ours has got this node; "": it has none."""
        self._seen.update([node] if node else [])

    def failed(self, node: str, now_s: float) -> bool:
        """A worker failed there. Returns whether the node is excluded from now on."""
        self.saw(node)
        if not node or node in self.excluded(now_s):
            return False
        recent = [at_s for at_s in self._failures_s.get(node, []) if at_s > now_s - WINDOW_S]
        if recent and now_s < recent[-1] + TOGETHER_S:
            return False
        self._failures_s[node] = [*recent, now_s]
        if len(recent) + 1 < self._exclude_after:
            return False
        del self._failures_s[node]
        self._until_s[node] = now_s + WINDOW_S
        return True

    def shut(self, node: str, now_s: float) -> bool:
        """Nothing can be started there. Returns whether the node is excluded from now on."""
        self.saw(node)
        if not node or node in self.excluded(now_s):
            return False
        self._shut.add(node)
        self._until_s[node] = now_s + WINDOW_S
        return True

    def excluded(self, now_s: float) -> tuple[str, ...]:
        """Those to leave out, by name."""
        current = [node for node, until_s in self._until_s.items() if now_s < until_s]
        shut = [node for node in current if node in self._shut]
        others = [node for node in current if node not in self._shut]
        latest = sorted(others, key=lambda node: -self._until_s[node])
        room = max(not shut, len(self._seen) // 2 - len(shut))
        return tuple(sorted([*shut, *latest[:room]]))

    def pardon(self) -> None:
        """Forgets what they have done."""
        self._failures_s.clear()
        self._until_s.clear()
        self._shut.clear()
