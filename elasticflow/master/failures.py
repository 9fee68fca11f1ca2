"""Processes that have gone by no order of the master's, and when these are too many: pure."""

from __future__ import annotations

MOST_EARLY = 10
"""So many processes in a row that die before they are ready, and none that lives, end the run."""
MOST_GONE = 100
"""So many workers that are gone, and no step made meanwhile, end the run. From the second on that may have
died of a slice it is tried apart: so what ends them is something else, or does so now and then."""

MANY_GONE = 3
"""After so many a tick's slices are tried apart, where servers that know of deadly ones die with workers."""


class Failures:
    """Counts them.

    own: failures that members have told of, or their exits. early: processes in a row that never were ready.
    gone: workers that were ready and have gone since ``reached``, the latest version, was made; wordless: of
    them, those that were counted as failures though they had not said a word of an error.
    """

    def __init__(self, own: int = 0, early: int = 0) -> None:
        self.own, self.early = own, early
        self.gone = self.wordless = self.reached = 0

    def fail(self, most: int) -> bool:
        """Another one. Whether there are more than ``max_failures``."""
        self.own += 1
        return self.own > most

    def die_early(self) -> bool:
        """Another process that was never ready. Whether these are too many in a row."""
        self.early += 1
        return self.early > MOST_EARLY

    def go(self, failed: bool) -> bool:
        """Another worker that was ready. Whether these are too many without a step."""
        self.gone += 1
        self.wordless += failed
        return self.gone > MOST_GONE

    def become_ready(self) -> None:
        """A process is ready: whatever killed those before it, it lives."""
        self.early = 0

    def make_step(self, version: int) -> None:
        """A version was made; perhaps once more, after servers had to go back."""
        if version > self.reached:
            self.reached, self.gone, self.wordless = version, 0, 0

    @property
    def careful_to(self) -> int:
        """The last tick that workers may have died of, one after the other, with all who knew; -1: none."""
        return self.reached if self.gone >= MANY_GONE else -1

    def explain(self) -> None:
        """It was found out why workers had ended without a word: of a record, by no failure of theirs."""
        self.own -= self.wordless
        self.gone = self.wordless = 0
