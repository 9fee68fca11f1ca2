"""Where a worker's seconds go."""

from __future__ import annotations

import json
import time
from pathlib import Path

from elasticflow.wire.messages import Usage


class Timeline:
    """Adds up seconds by what they were spent on; with a path, also keeps each interval.

    The file is written when the worker leaves. Each line of it is [what, tick, from, until] in seconds
    of the machine's monotonic clock, so that those of all workers on one machine fit together.
    """

    def __init__(self, path: Path | None, starting_s: float) -> None:
        self._path = path
        self._kept: list[tuple[str, int, float, float]] = []
        self._sums = {"computing": 0.0, "waiting": 0.0, "recovering": 0.0}
        self._starting_s = starting_s
        self._redone_s = 0.0
        self.num_slices = 0
        self.num_backup = 0

    def add(self, what: str, tick: int, since_s: float, *, again: bool = False) -> float:
        """From ``since_s`` until now was ``computing``, ``waiting`` or ``recovering``; returns now.

        again: what was computed had been computed before.
        """
        now_s = time.monotonic()
        self._sums[what] += now_s - since_s
        self._redone_s += now_s - since_s if again else 0.0
        if self._path:
            self._kept.append((what, tick, since_s, now_s))
        return now_s

    def close(self) -> None:
        """Writes the intervals, if they were kept."""
        if self._path:
            self._path.write_text("".join(json.dumps(each) + "\n" for each in self._kept), encoding="utf-8")

    def usage(self) -> Usage:
        """The sums so far."""
        return Usage(
            computing_s=self._sums["computing"],
            waiting_s=self._sums["waiting"],
            starting_s=self._starting_s,
            recovering_s=self._sums["recovering"],
            redone_s=self._redone_s,
            num_slices=self.num_slices,
            num_backup=self.num_backup,
        )
