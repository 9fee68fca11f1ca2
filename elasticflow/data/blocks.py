"""Records that are read block by block, through a cache that is bounded in bytes."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np

from elasticflow.data.permutation import WINDOW_BLOCKS, Rows
from elasticflow.data.ragged import Field, Pad, Ragged
from elasticflow.data.source import Array, Column, Source, check_numbers, column_of
from elasticflow.data.threads import NUM_THREADS, submit
from elasticflow.errors import DataError
from elasticflow_ps import columns

REMOTE_AHEAD = 2 * NUM_THREADS
BLOCK_BYTES = 4 << 20
"""How large blocks are made where the format leaves the choice."""
CACHE_BYTES = 256 << 20
TOGETHER = "\0"
"""In a block: columns of few bytes, record by record. What one has lies in a line or two of the processor's
cache, where column by column each value would be a miss of its own."""
NARROW_BYTES = 64
PACKED_AT_ONCE = 4096

Block: TypeAlias = "Mapping[str, Field]"
_Part: TypeAlias = "tuple[Field, Rows, Rows]"
"""A column of a block, which of its records are wanted, and where in the answer."""


class BlockCache:
    """The blocks used last, up to ``max_bytes`` of them, and in any case the very last one."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._blocks: OrderedDict[int, Block] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._blocks

    def get(self, number: int, read: Callable[[int], Block]) -> Block:
        """The block with this number, from the cache, or else from ``read``."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = read(number)
        self._blocks[number] = block
        self.num_bytes += _num_bytes(block)
        self.shrink(self.max_bytes)
        return block

    def shrink(self, max_bytes: int) -> None:
        """Drops the blocks used longest ago until at most ``max_bytes`` of them are left, or a single one."""
        while self.num_bytes > max_bytes and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self.num_bytes -= _num_bytes(oldest)


class _ReadAhead:
    """Blocks that threads read before they are asked for. The threads do not outlive a fork."""

    def __init__(self, read: Callable[[int], Block]) -> None:
        self._read = read
        self._pid = os.getpid()
        self._futures: dict[int, Future[Block]] = {}

    @property
    def under_way(self) -> dict[int, Future[Block]]:
        """What this process has threads read, by number; also what has been read and not been taken."""
        if self._pid != os.getpid():
            self._pid, self._futures = os.getpid(), {}
        return self._futures

    def start(self, number: int) -> None:
        """Has a thread read this block, unless one does so already."""
        if number not in self.under_way:
            self.under_way[number] = submit(self._read, number)

    def take(self, number: int) -> Block:
        """The block; if no thread reads it, it is read now."""
        future = self.under_way.pop(number, None)
        return self._read(number) if future is None else future.result()

    def done(self) -> list[int]:
        """Blocks to take that are there. Those that could not be read are forgotten: they may be later."""
        done = [number for number, future in self.under_way.items() if future.done()]
        failed = [number for number in done if self.under_way[number].exception()]
        for number in failed:
            del self.under_way[number]
        return [number for number in done if number not in failed]


def _num_bytes(block: Block) -> int:
    return sum(array.nbytes for array in block.values())


class BlockSource(Source):
    """A source whose subclass reads one block of neighbouring rows at a time.

    what: names the source in errors. block_rows: rows of each block; the first block is read at once,
    and says what the columns are. cache_bytes: bound of the cache, which holds at least one block.
    ahead: so many blocks at most threads read at a time, and before they are wanted: many where they come
    with some delay, a few where reading one is work that another core may do meanwhile.
    pads: of ragged columns.
    A subclass keeps no file open between two reads, so that a fork shares no handle.
    Raises DataError if there are no rows.
    """

    def __init__(
        self,
        what: str,
        block_rows: Sequence[int],
        cache_bytes: int,
        ahead: int = 0,
        pads: Mapping[str, Pad] | None = None,
    ) -> None:
        rows = np.array(block_rows, np.int64)
        self.what = what
        self._pads = dict(pads or {})
        self.num_rows = int(rows.sum())
        if self.num_rows == 0:
            raise DataError(f"{what} is empty: 0 records. At least one is needed.")
        self.block_starts: Rows = np.concatenate([[0], np.cumsum(rows)])
        self.blocks_read = 0
        self.columns: tuple[Column, ...] = ()
        self._together = np.dtype([])
        self._wide: tuple[Column, ...] = ()
        """Those of one size, whatever the block, that do not lie together."""
        self._cache = BlockCache(cache_bytes)
        self._ahead = _ReadAhead(self._read_checked)
        self._most_ahead = 0  # until it is known how large a block is
        first = int(np.flatnonzero(rows)[0])
        block = self._block(first)
        row_bytes = _num_bytes(block) / int(rows[first])
        self._largest_bytes = max(1, int(rows.max() * row_bytes))
        fitting = cache_bytes // (2 * self._largest_bytes)
        self.window_blocks = min(WINDOW_BLOCKS, max(1, fitting))
        self._most_ahead = min(ahead, fitting)

    @abstractmethod
    def read_block(self, number: int) -> Block:
        """All rows of a block, as arrays ``(rows of the block, *column.shape)`` by column name.

        Raises DataError, naming the file and the rows, if they cannot be read.
        """

    @abstractmethod
    def block_name(self, number: int) -> str:
        """The file and the rows of a block, for errors."""

    def __repr__(self) -> str:
        return f"{self.what} of {self.num_rows} records"

    def rows(self, numbers: Rows) -> dict[str, Field]:
        check_numbers(numbers, self.num_rows)
        blocks = np.searchsorted(self.block_starts, numbers, side="right") - 1
        order = _by_block(blocks)
        wide = {c.name: np.empty((len(numbers), *c.shape), c.dtype) for c in self._wide}
        together = np.empty(len(numbers), self._together)
        parts: dict[str, list[_Part]] = {column.name: [] for column in self.columns}
        runs = list(_runs(blocks, order))
        kept = len(runs) <= 2 * self.window_blocks  # by the cache, which has room for as many
        lacks = any(number not in self._cache for number, _ in runs)
        for turn, (number, places) in enumerate(runs):
            if lacks:
                self._start(number for number, _ in runs[turn : turn + self._most_ahead])
            local = numbers[places] - self.block_starts[number]
            for name, field in self._block(number).items():
                if isinstance(field, np.ndarray) and (name == TOGETHER or name in wide):
                    _move(field, local, places, together if name == TOGETHER else wide[name])
                elif kept:
                    parts[name].append((field, local, places))
                else:
                    parts[name].append((_taken(field, local), np.arange(len(local)), places))
        narrow = {name: np.ascontiguousarray(together[name]) for name in self._together.names or ()}
        whole = {**wide, **narrow}
        return {
            column.name: whole[column.name]
            if column.name in whole
            else _put_back(column, len(numbers), parts[column.name])
            for column in self.columns
        }

    def prefetch(self, numbers: Rows) -> None:
        blocks = np.searchsorted(self.block_starts, numbers, side="right") - 1
        self._start(dict.fromkeys(blocks.tolist()))

    def _start(self, blocks: Iterable[int]) -> None:
        """Has threads read these blocks, as many as there is room for."""
        if not self._most_ahead:
            return
        for number in self._ahead.done():
            self._block(number)
        for number in blocks:
            if number not in self._cache and len(self._ahead.under_way) < self._most_ahead:
                self._ahead.start(number)
                ahead_bytes = len(self._ahead.under_way) * self._largest_bytes
                self._cache.shrink(self._cache.max_bytes - ahead_bytes)

    def _block(self, number: int) -> Block:
        return self._cache.get(number, self._taken)

    def _taken(self, number: int) -> Block:
        self.blocks_read += 1
        return self._ahead.take(number)

    def _read_checked(self, number: int) -> Block:
        """A block as it comes from the file, if its columns are those of the first block."""
        block = self.read_block(number)
        num_rows = self.block_starts[number + 1] - self.block_starts[number]
        if any(len(array) != num_rows for array in block.values()):
            found = {name: len(array) for name, array in block.items()}
            raise DataError(f"{self.block_name(number)}: {num_rows} rows expected, found {found}.")
        for column, expected in zip(self._columns(block), self.columns, strict=False):
            if column != expected:
                raise DataError(
                    f"{self.block_name(number)}: column {column.name!r} holds {_describe(column)}, but "
                    f"{_describe(expected)} in the first rows of {self.what}. All rows must have one type."
                )
        if not self.columns:
            self.columns = self._columns(block)
            self._together = _record_of(self.columns)
            narrow = self._together.names or ()
            self._wide = tuple(c for c in _sized(self.columns) if c.name not in narrow)
        return _packed(block, self._together)

    def _columns(self, block: Block) -> tuple[Column, ...]:
        return tuple(
            column_of(f"{self.what}: column {name!r}", name, field, self._pads)
            for name, field in block.items()
        )


def _sized(found: Iterable[Column]) -> list[Column]:
    """Columns whose records have the same number of bytes in each block."""
    return [column for column in found if not column.pad and column.dtype not in ("str", "bytes")]


def _record_of(found: Sequence[Column]) -> np.dtype[np.void]:
    """What lies together: numbers of a fixed width; those of most bytes first, which aligns them."""
    kinds = [(c.name, c.dtype, c.shape) for c in _sized(found)]
    narrow = [each for each in kinds if each[0] and np.dtype(each[1:]).itemsize <= NARROW_BYTES]
    narrow.sort(key=lambda each: -np.dtype(each[1]).itemsize)
    return np.dtype(narrow if len(narrow) > 1 else [])


def _packed(block: Block, together: np.dtype[np.void]) -> Block:
    names = together.names or ()
    if not names:
        return block
    records = np.empty(len(next(iter(block.values()))), together)
    for start in range(0, len(records), PACKED_AT_ONCE):
        some = slice(start, start + PACKED_AT_ONCE)
        for name in names:
            records[name][some] = block[name][some]
    return {TOGETHER: records, **{name: field for name, field in block.items() if name not in names}}


def _move(field: Array, numbers: Rows, places: Rows, target: Array) -> None:
    """target[places] = field[numbers]"""
    if field.dtype == target.dtype and columns.takes(field, numbers, places):
        columns.move_records(field, numbers, places, target)
    else:
        target[places] = field.take(numbers, axis=0)


def _taken(field: Field, places: Rows) -> Field:
    return field.take(places) if isinstance(field, Ragged) else np.take(field, places, axis=0)


def _describe(column: Column) -> str:
    return f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype


def _by_block(blocks: Rows) -> Rows:
    """What sorts them, stably: NumPy counts numbers of 16 bits, which is ten times quicker."""
    nearby = blocks - blocks.min(initial=0)
    return np.argsort(nearby.astype(np.uint16) if nearby.max(initial=0) < 1 << 16 else nearby, kind="stable")


def _runs(blocks: Rows, order: Rows) -> Iterator[tuple[int, Rows]]:
    """(block number, places in ``blocks`` where it stands) for each block. ``order`` sorts ``blocks``."""
    in_order = blocks[order]
    borders = np.flatnonzero(np.diff(in_order)) + 1
    for places in np.split(order, borders):
        if len(places):
            yield int(blocks[places[0]]), places


def _put_back(column: Column, size: int, parts: list[_Part]) -> Field:
    """One column of the answer: of records of different lengths, or of texts, which one block may have longer
    than another."""
    if column.pad:
        ragged = [(field, local, places) for field, local, places in parts if isinstance(field, Ragged)]
        if not ragged:
            return Ragged(np.empty((0, *column.shape[1:]), column.dtype), np.zeros(1, np.int64))
        return Ragged.gathered(ragged, size)
    arrays = [(field, local, places) for field, local, places in parts if not isinstance(field, Ragged)]
    dtypes = [np.dtype(column.dtype), *(field.dtype for field, _, _ in arrays)]
    result = np.empty((size, *column.shape), max(dtypes, key=lambda dtype: dtype.itemsize))
    for field, local, places in arrays:
        _move(field, local, places, result)
    return result
