"""Processes that have gone by no order of the master's, and when these are too many: pure."""

from __future__ import annotations

import math

MOST_EARLY = 10
"""So many processes in a row that die before they are ready, and none that lives, end the run."""
MOST_GONE = 100
"""So many workers that are gone, and no step made meanwhile, end the run. From the second on that may have
died of a slice it is tried apart: so what ends them is something else, or does so now and then."""
MOST_IN_VAIN = 2 * MOST_GONE
"""So many processes of any kind, ready or not. Servers that end as soon as they have begun may have workers
end that have not: neither are too many workers then, nor too many in a row that never lived."""
OFTEN_GONE, OFTEN_IN_VAIN = 2, 10
"""Of a large run so many times its members may go: a part of the cluster that is lost is no end of it."""

TOGETHER_S = 10.0
"""Workers that fail within this on a host where none was ever ready lack one thing there."""
MANY_GONE = 3
"""After so many a tick's slices are tried apart, where servers that know of deadly ones die with workers."""
MOST_UNKNOWN = 2 * MANY_GONE
"""So many workers, gone at one step, count as failures only once that was done: some began before it was."""
MOST_DOUBLINGS = 10
UNTOLD_S, MOST_UNTOLD = 1.0, 32
"""Of what servers have made in their last second, and of no more ticks, they may not have told."""


def untold_in(step_s: float) -> int:
    """Ticks that servers which died may have made, and told nobody of. step_s: of one; 0: nobody knows."""
    return min(MOST_UNTOLD, math.ceil(UNTOLD_S / step_s)) if step_s else MOST_UNTOLD


class Failures:
    """Counts them.

    own: failures that members have told of, or their exits. early: processes in a row that never were ready.
    gone: workers that were ready and have gone, and may all have died of one tick: no version was made that
    shows that they have not, ``reached`` is the latest. wordless: of them, those that were counted as
    failures though they had not said a word of an error. in_vain: processes that have ended since a version
    was made that was new. silent: how often servers were given up for
    their silence since a version was made that was new.
    """

    def __init__(self, own: int = 0, early: int = 0) -> None:
        self.own, self.early = own, early
        self.gone = self.wordless = self.in_vain = self.reached = self.silent = 0
        self._silent_s = -math.inf
        self._failed_s: dict[str, float] = {}
        """By host, where all lack something: when one failed that counts."""
        self._suspect_to = self._untold = 0
        """The last tick that they may have died of; of it, those that may have been made and not told of."""

    def fail(self, most: int, host: str = "", now_s: float = 0.0) -> bool:
        """Another one. Whether there are more than ``max_failures``.

        host: where a worker failed that never was ready, as nobody is there, while others are elsewhere: as
        many as have a place on a bad node fail at once, and count as one. Else "".
        Workers that went without a word, and their servers with them, at one step, one after the other, do
        not count until its slices are tried apart: it may be a record that ends them.
        """
        if host:
            if now_s < self._failed_s.get(host, -math.inf) + TOGETHER_S:
                return False
            self._failed_s[host] = now_s
        self.own += 1
        unknown = self.wordless if self._untold and 1 < self.gone <= MOST_UNKNOWN else 0
        return self.own - unknown > most

    def die_early(self) -> bool:
        """Another process that was never ready. Whether these are too many in a row."""
        self.early += 1
        return self.early > MOST_EARLY

    def end_in_vain(self, members: int) -> bool:
        """Another process. Whether these are too many without a step. members: that the run has."""
        self.in_vain += 1
        return self.in_vain > max(MOST_IN_VAIN, OFTEN_IN_VAIN * members)

    def go(self, failed: bool, untold: int = 0, members: int = 0) -> bool:
        """Another worker that was ready. Whether these are too many without a step.

        untold: see ``untold_in``, where servers go with workers; else 0. members: that the run has.
        """
        self.gone += 1
        self.wordless += failed
        self._suspect_to, self._untold = self.reached + untold, untold
        return self.gone > max(MOST_GONE, OFTEN_GONE * members)

    @property
    def careful_to(self) -> int:
        """The last tick that workers may have died of, one after the other, with all who knew; -1: none."""
        return self._suspect_to if self._untold and self.gone >= MANY_GONE else -1

    def fall_silent(self, now_s: float, together_s: float) -> None:
        """A server is given up for its silence. together_s: so soon after another it counts as one."""
        self.silent += now_s > self._silent_s + together_s
        self._silent_s = now_s

    @property
    def patience(self) -> int:
        """So many times the usual a server may be silent: twice as long after each time that one was given up
        for it, as long as nothing comes of that. Where a machine is busy, it may just be slow.

        Source: T. D. Chandra and S. Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems",
        Journal of the ACM 43 (2), 1996: suspicions that prove wrong lengthen the time-out.
        """
        return 1 << min(self.silent, MOST_DOUBLINGS)

    def become_ready(self) -> None:
        """A process is ready: whatever killed those before it, it lives."""
        self.early = 0

    def make_step(self, version: int) -> None:
        """A version was made; perhaps once more, after servers had to go back."""
        if version > self.reached:
            self.reached, self.silent, self.in_vain = version, 0, 0
            if version > self._suspect_to:
                self.gone = self.wordless = 0

    def explain(self) -> None:
        """It was found out why workers had ended without a word: of a record, by no failure of theirs."""
        self.own -= self.wordless
        self.gone = self.wordless = 0
