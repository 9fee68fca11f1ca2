"""Records that are read block by block, through a cache that is bounded in bytes."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from elasticflow.data.permutation import WINDOW_BLOCKS, Rows
from elasticflow.data.source import Array, Column, Source, check_numbers, make_column
from elasticflow.data.threads import NUM_THREADS, submit
from elasticflow.errors import DataError

BLOCK_BYTES = 4 << 20
"""How large blocks are made where the format leaves the choice."""
CACHE_BYTES = 256 << 20

Block = dict[str, Array]


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
    is_remote: blocks come with some delay: threads read several at a time, and those that are wanted soon.
    A subclass keeps no file open between two reads, so that a fork shares no handle.
    Raises DataError if there are no rows.
    """

    def __init__(
        self, what: str, block_rows: Sequence[int], cache_bytes: int, is_remote: bool = False
    ) -> None:
        rows = np.array(block_rows, np.int64)
        self.what = what
        self.num_rows = int(rows.sum())
        if self.num_rows == 0:
            raise DataError(f"{what} is empty: 0 records. At least one is needed.")
        self.block_starts: Rows = np.concatenate([[0], np.cumsum(rows)])
        self.blocks_read = 0
        self.columns: tuple[Column, ...] = ()
        self._cache = BlockCache(cache_bytes)
        self._ahead = _ReadAhead(self._read_checked)
        self._most_ahead = 0  # until it is known how large a block is
        first = self._block(int(np.flatnonzero(rows)[0]))
        self.columns = _columns(what, first)
        row_bytes = _num_bytes(first) / len(next(iter(first.values())))
        self._largest_bytes = max(1, int(rows.max() * row_bytes))
        fitting = cache_bytes // (2 * self._largest_bytes)
        self.window_blocks = min(WINDOW_BLOCKS, max(1, fitting))
        self._most_ahead = min(2 * NUM_THREADS, fitting) if is_remote else 0

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

    def rows(self, numbers: Rows) -> dict[str, Array]:
        check_numbers(numbers, self.num_rows)
        blocks = np.searchsorted(self.block_starts, numbers, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        parts: dict[str, list[Array]] = {column.name: [] for column in self.columns}
        runs = list(_runs(blocks, order))
        for turn, (number, places) in enumerate(runs):
            self._start(number for number, _ in runs[turn : turn + self._most_ahead])
            local = numbers[places] - self.block_starts[number]
            for name, array in self._block(number).items():
                parts[name].append(np.take(array, local, axis=0))
        return {column.name: _put_back(column, order, parts[column.name]) for column in self.columns}

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
        for column, expected in zip(_columns(self.what, block), self.columns, strict=False):
            if column != expected:
                raise DataError(
                    f"{self.block_name(number)}: column {column.name!r} holds {_describe(column)}, but "
                    f"{_describe(expected)} in the first rows of {self.what}. All rows must have one type."
                )
        return block


def _columns(what: str, block: Block) -> tuple[Column, ...]:
    return tuple(
        make_column(f"{what}: column {name!r}", name, array.shape, array.dtype)
        for name, array in block.items()
    )


def _describe(column: Column) -> str:
    return f"{column.dtype} of shape {column.shape}" if column.shape else column.dtype


def _runs(blocks: Rows, order: Rows) -> Iterator[tuple[int, Rows]]:
    """(block number, places in ``blocks`` where it stands) for each block. ``order`` sorts ``blocks``."""
    in_order = blocks[order]
    borders = np.flatnonzero(np.diff(in_order)) + 1
    for places in np.split(order, borders):
        if len(places):
            yield int(blocks[places[0]]), places


def _put_back(column: Column, order: Rows, parts: list[Array]) -> Array:
    """One column of the answer: the parts, one for each block, at the places that ``order`` says."""
    if len(parts) == 1:  # one block: a stable sort has left the order as it was
        return parts[0]
    widest = max([np.dtype(column.dtype), *(part.dtype for part in parts)], key=lambda dtype: dtype.itemsize)
    result = np.empty((len(order), *column.shape), widest)
    start = 0
    for part in parts:
        result[order[start : start + len(part)]] = part
        start += len(part)
    return result
