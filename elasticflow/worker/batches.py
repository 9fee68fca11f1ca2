"""The records of a slice, as the framework's tensors: a pure function of (tick, slice, quarantine)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from elasticflow.data import Source, Sources
from elasticflow.frameworks import Batch, Replica
from elasticflow.process.poison import poison
from elasticflow.step.layout import Array
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.wire.messages import Excluded

RowNumbers = npt.NDArray[np.int64]
Slice = tuple[Batch | None, int]


def slice_seed(seed: int, tick: int, number: int) -> int:
    """63 well-mixed bits, one seed a slice. Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + (tick << 20) + number + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return (z ^ z >> 31) >> 1


class _Order:
    """The order of the training records, worked out a stretch at a time: many small asks are slow."""

    STRETCH = 1 << 13

    def __init__(self, source: Source, seed: int) -> None:
        self._shuffle = source.shuffle(seed)
        self._num_rows = source.num_rows
        self._epoch = self._first = -1
        self._rows: RowNumbers = np.empty(0, np.int64)

    def rows(self, epoch: int, first: int, last: int) -> RowNumbers:
        """Row numbers at these positions; not to be written to."""
        inside = epoch == self._epoch and self._first <= first and last <= self._first + len(self._rows)
        if not inside:
            stop = min(max(last, first + self.STRETCH), self._num_rows)
            self._epoch, self._first = epoch, first
            self._rows = self._shuffle.rows(epoch, first, stop)
        return self._rows[first - self._first : last - self._first]

    def soon(self, epoch: int, first: int, epochs: int) -> RowNumbers:
        """Some record of each block that will be wanted next, once those around a position are used up."""
        rows = self._shuffle.next_window(epoch, first)
        if not len(rows) and epoch + 1 < epochs:
            rows = self._shuffle.next_window(epoch + 1, -1)
        return rows


def _let_go(columns: Mapping[str, Array]) -> None:
    """The framework has made tensors of its own of these."""
    poison(*(column for column in columns.values() if column.dtype.kind in "fiu"))


class Batches:
    """Reads slices, and keeps those fetched ahead.

    binding: which column goes to which argument of ``forward``.
    """

    def __init__(
        self, schedule: Schedule, sources: Sources, seed: int, binding: Mapping[str, str], replica: Replica
    ) -> None:
        self._schedule = schedule
        self._train, self._test = sources.train, sources.test
        self._order = _Order(self._train, seed)
        self._binding = binding
        self._replica = replica
        self._excluded: dict[int, int] = {}
        self._ahead: dict[tuple[int, int], Slice] = {}

    def exclude(self, excluded: Iterable[Excluded]) -> None:
        """Leaves these records out from now on."""
        self._excluded.update((each.row, each.from_tick) for each in excluded)
        self._ahead.clear()

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        """The records that are left out."""
        return tuple(Excluded(row, from_tick) for row, from_tick in sorted(self._excluded.items()))

    def rows(self, work: Work, number: int) -> RowNumbers:
        """Row numbers of a slice, quarantined records left out."""
        first, last = self._schedule.slice_of(work, number)
        if work.kind is Kind.EVALUATE:
            return np.arange(first, last)
        rows = self._order.rows(work.epoch, first, last)
        if self._excluded:
            since = np.array([self._excluded.get(int(row), work.tick + 1) for row in rows], np.int64)
            rows = rows[since > work.tick]
        return rows

    def of_rows(self, kind: Kind, rows: RowNumbers) -> Batch:
        """These records, in this order."""
        source = self._train if kind is Kind.TRAIN else self._test
        assert source is not None
        columns = source.rows(rows)
        batch = self._replica.prepare({argument: columns[c] for argument, c in self._binding.items()})
        _let_go(columns)
        return batch

    def fetch(self, work: Work, numbers: Sequence[int]) -> None:
        """Reads slices of training ahead of time, all at once, unless that is done."""
        if self._ahead and self._ahead.keys() >= {(work.tick, number) for number in numbers}:
            return
        self._ahead.clear()
        if work.kind is Kind.EVALUATE:
            return
        rows = {number: self.rows(work, number) for number in numbers}
        columns = self._train.rows(np.concatenate(list(rows.values())))
        first, _ = self._schedule.slice_of(work, next(iter(rows)))
        self._train.prefetch(self._order.soon(work.epoch, first, self._schedule.epochs))
        start = 0
        for number, part in rows.items():
            stop = start + len(part)
            views = {argument: columns[c][start:stop] for argument, c in self._binding.items()}
            self._ahead[work.tick, number] = self._replica.prepare(views) if len(part) else None, len(part)
            start = stop
        _let_go(columns)

    def fetched(self, work: Work, number: int) -> Batch | None:
        """A slice's batch, if it was read ahead of time."""
        batch, _ = self._ahead.get((work.tick, number), (None, 0))
        return batch

    def train(self, work: Work, number: int) -> Slice:
        """A slice's batch (None if it holds no records), and its number of records."""
        if ahead := self._ahead.pop((work.tick, number), None):
            return ahead
        rows = self.rows(work, number)
        return (self.of_rows(Kind.TRAIN, rows) if len(rows) else None), len(rows)

    def test(self, work: Work, number: int) -> Iterator[tuple[Batch, int]]:
        """A slice of the test source, in batches of about the size that slices of training have."""
        assert self._test is not None
        rows = self.rows(work, number)
        places = self._schedule.pieces_of(len(rows)) if len(rows) else [0]
        for start, stop in pairwise(places):
            self._test.prefetch(rows[stop :: self._schedule.full_slice])
            yield self.of_rows(Kind.EVALUATE, rows[start:stop]), stop - start
