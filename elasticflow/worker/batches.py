"""The records of a slice, as the framework's tensors: a pure function of (tick, slice, quarantine)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from elasticflow.data import Field, Ragged, Source, Sources
from elasticflow.data.opening import PartOfTests
from elasticflow.errors import DataError
from elasticflow.frameworks import FRAMEWORKS, Batch, Replica
from elasticflow.hashing import mix
from elasticflow.process.poison import poison
from elasticflow.step.layout import Array
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.wire.messages import Excluded
from elasticflow.worker.readers import Readers, SliceAhead

RowNumbers = npt.NDArray[np.int64]
Slice = tuple[Batch | None, int]
BLOCKS_SOON = 32
"""Of so many more than the next one an evaluation says that it will read them: no source reads more ahead."""


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
        self._num_records = source.epoch_records
        self._epoch = self._first = -1
        self._rows: RowNumbers = np.empty(0, np.int64)

    def rows(self, epoch: int, first: int, last: int) -> RowNumbers:
        """Row numbers at these positions; not to be written to."""
        inside = epoch == self._epoch and self._first <= first and last <= self._first + len(self._rows)
        if not inside:
            stop = min(max(last, first + self.STRETCH), self._num_records)
            self._epoch, self._first = epoch, first
            self._rows = self._shuffle.rows(epoch, first, stop)
        return self._rows[first - self._first : last - self._first]

    def soon(self, epoch: int, first: int, epochs: int) -> RowNumbers:
        """Some record of each block that will be wanted next, once those around a position are used up."""
        rows = self._shuffle.next_window(epoch, first)
        if not len(rows) and epoch + 1 < epochs:
            rows = self._shuffle.next_window(epoch + 1, -1)
        return rows


def _let_go(columns: Mapping[str, Field]) -> None:
    """The framework has made tensors of its own of these."""
    arrays = [column.values if isinstance(column, Ragged) else column for column in columns.values()]
    poison(*(array for array in arrays if array.dtype.kind in "fiu" and array.flags.writeable))


def _next_blocks(source: Source, rows: RowNumbers) -> RowNumbers:
    """A record of each of the next blocks. rows: that follow each other.

    It is asked for each piece of an evaluation, so it must not take longer where many records are left.
    """
    if not len(rows) or source.block_starts is None:
        return rows[:1]
    next_one = int(np.searchsorted(source.block_starts, rows[0], "right"))
    starts = source.block_starts[next_one : next_one + BLOCKS_SOON]
    return np.append(rows[0], starts[starts <= rows[-1]])


def check_columns(framework: str, columns: Mapping[str, Array], rows: RowNumbers) -> None:
    """Raises DataError, with column and record, for what the framework has no tensors of."""
    allowed = "biufcSU" if framework == "tensorflow" else "biufc"
    for name, column in columns.items():
        if column.dtype.kind not in allowed and len(column):
            what = "texts" if column.dtype.kind in "SU" else "dates or times"
            advice = (
                f"vocabularies={{{name!r}: [...]}} or hashing={{{name!r}: N}} of ef.data.Parquet makes "
                "numbers of them, ef.hash_ids() those of an array"
                if what == "texts"
                else "make days or seconds of them, such as (x - np.datetime64(0, 'D')).astype(int)"
            )
            raise DataError(
                f"column {name!r} holds {what} ({column.dtype}), such as {str(column.reshape(-1)[0])!r} in "
                f"record {int(rows[0])}, of which {FRAMEWORKS[framework]} has no tensors: {advice}."
            )


class Batches:
    """Reads slices, and keeps those fetched ahead.

    binding: which column goes to which argument of ``forward``.
    """

    def __init__(
        self, schedule: Schedule, sources: Sources, seed: int, binding: Mapping[str, str], replica: Replica
    ) -> None:
        self._schedule = schedule
        self._train, self._test, self._parts = sources.train, sources.test, sources.tests
        self._order = _Order(self._train, seed)
        self._seed, self._epoch = seed, 0
        self._binding = binding
        self._replica = replica
        self._excluded: dict[int, int] = {}
        self._ahead: dict[tuple[int, int], Slice] = {}
        self.readers: Readers | None = None
        """Processes that make slices ahead of time, if there are any."""

    def exclude(self, excluded: Iterable[Excluded]) -> None:
        """Leaves these records out from now on."""
        self._excluded.update((each.row, each.from_tick) for each in excluded)
        self._ahead.clear()
        if self.readers:
            self.readers.forget()

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        """The records that are left out."""
        return tuple(Excluded(row, from_tick) for row, from_tick in sorted(self._excluded.items()))

    def rows(self, work: Work, number: int) -> RowNumbers:
        """Row numbers of a slice, quarantined records left out."""
        first, last = self._schedule.slice_of(work, number)
        if work.kind is Kind.EVALUATE:
            return np.arange(first, last)
        self._epoch = work.epoch
        return self._rows_to_train(work, first, last)

    def _rows_to_train(self, work: Work, first: int, last: int) -> RowNumbers:
        rows = self._order.rows(work.epoch, first, last)
        return rows[self._stay(work, rows)] if self._excluded else rows

    def _stay(self, work: Work, rows: RowNumbers) -> npt.NDArray[np.bool_]:
        """Which of these records are not left out of a tick."""
        since = np.array([self._excluded.get(int(row), work.tick + 1) for row in rows], np.int64)
        return since > work.tick

    def places(self, work: Work, number: int) -> RowNumbers:
        """Where in a step's batch the records of a slice are that ``rows`` has."""
        first, last = self._schedule.slice_of(work, number)
        places = np.arange(first - work.first, last - work.first)
        if self._excluded:
            places = places[self._stay(work, self._order.rows(work.epoch, first, last))]
        return places

    def of_rows(self, kind: Kind, rows: RowNumbers) -> Batch:
        """These records, in this order, as they are in the epoch that was asked for last."""
        source = self._test if kind is Kind.EVALUATE else self._train
        assert source is not None
        seed = self._seed_of(0 if kind is Kind.EVALUATE else self._epoch)
        columns = source.drawn(rows, seed)
        batch = self._prepared(source, columns, rows, seed)
        _let_go(columns)
        return batch

    def _prepared(self, source: Source, columns: Mapping[str, Field], rows: RowNumbers, seed: int) -> Batch:
        """A slice, as it would be if it had been read alone."""
        return self._batch(source.finish(columns, mix(seed, int(rows[0]))))

    def _batch(self, arrays: Mapping[str, Array]) -> Batch:
        return self._replica.prepare({argument: arrays[c] for argument, c in self._binding.items()})

    def _seed_of(self, epoch: int) -> int:
        return mix(self._seed, epoch)

    def make(self, rows: RowNumbers, seed: int) -> dict[str, Array]:
        """The columns of a slice of training, as ``readers`` make them elsewhere."""
        return self._train.finish(self._train.drawn(rows, seed), mix(seed, int(rows[0])))

    def order_ahead(self, work: Work, numbers: Iterable[int]) -> None:
        """Has ``readers`` make these slices from this tick on, of as many ticks as there is room for."""
        if self.readers is None or not self.readers.active:
            return
        self.readers.forget(work.tick)
        chosen = tuple(numbers)
        while chosen and work.tick < self._schedule.total_ticks:
            for number in () if work.kind in (Kind.EVALUATE, Kind.KEEP) else chosen:
                if not self.readers.has_room():
                    return
                if (work.tick, number) not in self._ahead:
                    rows = self._rows_to_train(work, *self._schedule.slice_of(work, number))
                    self.readers.order(SliceAhead(work.tick, number), rows, self._seed_of(work.epoch))
            work = self._schedule.at(work.tick + 1)

    def _take_made(self, work: Work, number: int) -> Slice | None:
        """A slice that ``readers`` have made."""
        columns = self.readers.take(SliceAhead(work.tick, number)) if self.readers else None
        if columns is None:
            return None
        batch = self._batch(columns)
        _let_go(columns)
        return batch, len(next(iter(columns.values())))

    def fetch(self, work: Work, numbers: Sequence[int]) -> None:
        """Reads slices of training ahead of time, all at once, unless that is done."""
        if self._ahead and self._ahead.keys() >= {(work.tick, number) for number in numbers}:
            return
        self._ahead.clear()
        if work.kind in (Kind.EVALUATE, Kind.KEEP):
            return
        if self.readers and self.readers.active:
            for number in numbers:
                if self.readers.is_made(SliceAhead(work.tick, number)) and (
                    made := self._take_made(work, number)
                ):
                    self._ahead[work.tick, number] = made
            return
        rows = {number: self.rows(work, number) for number in numbers}
        seed = self._seed_of(work.epoch)
        columns = self._train.drawn(np.concatenate(list(rows.values())), seed)
        first, _ = self._schedule.slice_of(work, next(iter(rows)))
        self._train.prefetch(self._order.soon(work.epoch, first, self._schedule.epochs))
        start = 0
        for number, part in rows.items():
            stop = start + len(part)
            views = {name: field[start:stop] for name, field in columns.items()}
            batch = self._prepared(self._train, views, part, seed) if len(part) else None
            self._ahead[work.tick, number] = batch, len(part)
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
        if made := self._take_made(work, number):
            return made
        rows = self.rows(work, number)
        return (self.of_rows(Kind.TRAIN, rows) if len(rows) else None), len(rows)

    def test(self, work: Work, number: int) -> Iterator[tuple[Batch, PartOfTests, int, int]]:
        """A slice of the test sources, in batches of about the size that slices of training have.

        Each of one source, with the numbers of its first record, and of the one after its last.
        """
        assert self._test is not None
        rows = self.rows(work, number)
        for part in self._parts:
            mine = rows[(rows >= part.first) & (rows < part.last)]
            for start, stop in pairwise(self._schedule.pieces_of(len(mine)) if len(mine) else [0]):
                self._test.prefetch(_next_blocks(self._test, mine[stop:]))
                batch = self.of_rows(Kind.EVALUATE, mine[start:stop])
                yield batch, part, int(mine[start]), int(mine[stop - 1]) + 1
