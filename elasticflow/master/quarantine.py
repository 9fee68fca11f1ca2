"""Slices on which the program raises, and the records that are left out because of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from elasticflow.run.config import Config
from elasticflow.wire.messages import Excluded, Faulty

MOST_PERCENT = 1
"""Where more of the records raise, they are probably not to blame; but one may always be."""


class Limit(NamedTuple):
    """How many records may be left out, and why not more."""

    most: int
    reason: str


def limit_of(config: Config, num_records: int) -> Limit:
    """What the settings allow, of so many records."""
    allowed, most = config.max_quarantined, max(1, num_records * MOST_PERCENT // 100)
    if allowed <= most or config.force_quarantine:
        return Limit(allowed, f"max_quarantined is {allowed}")
    text = (
        f"max_quarantined is {allowed}, but no more than {MOST_PERCENT} % of {num_records} records, {most}, "
        "are left out: where it is more, the records are probably not to blame. If they are, allow it with "
        "force_quarantine: true"
    )
    return Limit(most, text)


class QuarantineRules:
    """A slice is judged once every worker that is there has tried it: while one of them can compute it
    whole, it may do so, and the step goes on."""

    def __init__(self, excluded: tuple[Excluded, ...]) -> None:
        self.excluded = excluded
        self._faults: dict[tuple[int, int], dict[str, Faulty]] = {}
        """By (tick, slice): what each worker that tried it found."""

    @property
    def rows(self) -> set[int]:
        return {each.row for each in self.excluded}

    def report(self, event: Faulty) -> bool:
        """A worker cannot compute a slice. Returns whether it is the first to say so."""
        reports = self._faults.setdefault((event.tick, event.slice), {})
        first = not reports
        reports[event.name] = event
        return first

    def is_deadly(self, tick: int, number: int) -> bool:
        """Whether a slice has ended a process in which it was tried, as far as is known."""
        return any(report.dies for report in self._faults.get((tick, number), {}).values())

    def untried(self, name: str) -> list[tuple[int, int]]:
        """(tick, slice) of those that wait for this worker's word as well."""
        return [key for key, reports in self._faults.items() if name not in reports]

    def verdicts(self, present: set[str]) -> list[Faulty]:
        """One report of each slice that nobody who is ``present`` can compute; they are settled by this."""
        if not present:
            return []
        hopeless = [key for key, reports in self._faults.items() if present <= reports.keys()]
        return [self._faults.pop(key)[min(present)] for key in hopeless]

    def exclude(self, rows: list[int], tick: int) -> None:
        """Leaves rows out from a tick on."""
        self.excluded += tuple(Excluded(row, tick) for row in rows)

    def learn(self, excluded: Iterable[Excluded]) -> None:
        """Of records that workers leave out already: a master before this one has told them."""
        self.excluded += tuple(each for each in excluded if each.row not in self.rows)

    def forget(self, before: int) -> None:
        """What was raised in ticks before this one is settled."""
        self._faults = {key: reports for key, reports in self._faults.items() if key[0] >= before}

    def clear(self) -> None:
        """All workers begin a tick anew, and will tell again."""
        self._faults.clear()
