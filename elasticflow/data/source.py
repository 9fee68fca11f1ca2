"""What a source of records is, and the checks that all sources share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.data.permutation import WINDOW_BLOCKS, Rows, Shuffle
from elasticflow.data.ragged import LENGTHS, Field, Pad, Ragged, padded
from elasticflow.errors import DataError
from elasticflow.storage.file_ids import FileId

Array = npt.NDArray[np.generic]

_ALLOWED_KINDS = "biufcSUMm"
_ALLOWED = "numbers, booleans, strings and dates"


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One named field of a record.

    shape: of one record, -1 where records have different lengths. dtype: NumPy's name for it, such as
    ``float32``; ``str`` and ``bytes`` stand for text of any width (``U`` and ``S`` arrays). pad: of a ragged
    column, how the records of a slice are made equally long.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pad: Pad | None = None


class Order(Protocol):
    """Which records come when: a pure function of a seed, kept nowhere."""

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """(stop - start,) row numbers at these positions of the epoch. Raises ValueError outside of it."""

    def next_window(self, epoch: int, position: int) -> Rows:
        """Some row of each block that will be wanted next, after those around a position."""


class ArrayLike(Protocol):
    """What is asked of an array: records by number."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[np.generic]: ...

    def __len__(self) -> int: ...

    def take(self, indices: Rows, axis: Literal[0]) -> Array:
        """A new array of these records."""


class Source(ABC):
    """Records by number. To read a format of your own, set ``columns`` and ``num_rows`` and write ``rows``.

    A source is used by one thread at a time. It may be made before ``os.fork`` and used after it.
    """

    columns: tuple[Column, ...]
    num_rows: int
    files: tuple[FileId, ...] = ()
    """Those that the records come from, as they were found."""
    positional: bool = False
    """True: columns are bound to the arguments of ``forward`` by position, not by name."""
    block_starts: Rows | None = None
    """(num_blocks + 1,) first row of each block that is read as a whole, and ``num_rows``; None: any
    row is as cheap as any other."""
    window_blocks: int = WINDOW_BLOCKS
    """How many blocks a shuffled pass should mix with each other: as many as the cache holds twice."""

    @abstractmethod
    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        """The records with these numbers, in this order, as one array for each column.

        numbers: (n,) int64, in ``0..num_rows``, may repeat. Returns fresh, C-contiguous arrays
        ``(n, *column.shape)``; a ``Ragged`` for a column whose records have different lengths.
        Raises IndexError for a number out of range, DataError if a file turns out to be damaged.
        """

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        """As ``rows``, where what is made of a record may follow from random numbers too.

        seed: of the run and the epoch. A record is a function of it and of its number, whoever reads it.
        """
        return self.rows(numbers)

    def held(self) -> Iterator[tuple[str, Array]]:
        """Arrays that the program has put into memory, by name, from which the records follow: those that
        a run cannot tell by the files that it reads."""
        return iter(())

    def prefetch(self, numbers: Rows) -> None:  # noqa: B027  (most sources have nothing to gain)
        """Says which records are wanted soon, so that a slow medium can begin. Never waits, never raises."""

    def __len__(self) -> int:
        return self.num_rows

    @property
    def epoch_records(self) -> int:
        """How many records an epoch has: some may come more than once, or not at all."""
        return self.num_rows

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns that ``forward`` may take, and need not: the lengths of ragged ones."""
        if self.positional:
            return ()
        return tuple(column.name + LENGTHS for column in self.columns if column.pad)

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        """The records of one slice, and of no other, as ``forward`` gets them: ragged columns are arrays now,
        with their lengths beside. seed: of random numbers, of which this source needs none."""
        return padded(fields, {column.name: column.pad for column in self.columns})

    @cached_property
    def signature(self) -> str:
        """SHA-256 over the columns and the number of rows; a resumed run must find the same."""
        return hashlib.sha256(msgspec.json.encode((self.columns, self.num_rows))).hexdigest()

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        """All records of another file, or of others, or those that are handed in, made as these are.

        wanted: the columns, and what a file calls each that was not made for this source; None: all of these
        that are there. Raises DataError if one is not there.
        """
        if wanted is None:
            wanted = {column.name: column.name for column in self.columns}
            there = names_in(path)
            wanted = {column: name for column, name in wanted.items() if name in there}
        return reopened(path, wanted)

    def shuffle(self, seed: int) -> Order:
        """The order in which epochs visit these rows, block by block where rows come in blocks."""
        return Shuffle(self.num_rows, seed, self.block_starts, self.window_blocks)


class Records(ABC):
    """Records that are handed in, in the place of a file. names: what they call their columns."""

    @property
    @abstractmethod
    def names(self) -> list[str]: ...

    @abstractmethod
    def opened(self, selection: Mapping[str, Any], rules: Any = None) -> Source:
        """Those of the columns that are wanted: see ``tables.Wanted``. Raises DataError."""


def column_of(
    what: str, name: str, field: ArrayLike | Ragged, pads: Mapping[str, Pad] | None = None
) -> Column:
    """The column that these records make. Raises DataError as ``make_column`` does."""
    column = make_column(what, name, field.shape, field.dtype)
    if not isinstance(field, Ragged):
        return column
    return msgspec.structs.replace(column, pad=(pads or {}).get(name) or field.pad or Pad())


def make_column(what: str, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Column:
    """The column that an array of this shape (records first) makes. ``what`` names it in errors.

    Raises DataError for a 0-d array and for elements that are no numbers, booleans, strings or dates.
    """
    if not shape:
        raise DataError(
            f"{what} is a single value (a 0-d array). A column holds one entry for each record: "
            "give an array with the records along its first axis."
        )
    if dtype.kind not in _ALLOWED_KINDS:
        raise DataError(
            f"{what} has elements of type {dtype}. Allowed are {_ALLOWED}, in arrays whose records all "
            "have the same shape. Convert the column first, or leave it out."
        )
    return Column(name, tuple(int(length) for length in shape[1:]), dtype_name(dtype))


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """As a ``Column`` has it."""
    name: str = {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)
    return name


def common_length(what: str, lengths: Mapping[str, int]) -> int:
    """The number of records, which must be the same for each column and at least 1.

    Raises DataError if there is no column, no record, or columns of different lengths.
    """
    if not lengths:
        raise DataError(f"{what} has no columns. Give it at least one array.")
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(
            f"{what}: columns of different lengths: {found} records. All must have the same number; "
            "records lie along the first axis."
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise DataError(f"{what} is empty: 0 records. At least one is needed.")
    return length


def choose_names(what: str, kind: str, names: Mapping[str, str], there: list[str]) -> dict[str, str]:
    """Which entry of a file each column comes from: the names asked for, or all that are there.

    kind: what a file of this type calls its entries ("dataset", "array", "column").
    Raises DataError for an entry that is not there, and lists those that are.
    """
    chosen = dict(names) or {name: name for name in there}
    missing = [entry for entry in chosen.values() if entry not in there]
    if missing:
        listed = ", ".join(repr(name) for name in there) or "none"
        raise DataError(f"{what}: there is no {kind} {missing[0]!r}. There are: {listed}.")
    return chosen


def kind_of(path: str) -> Any:
    """Which source reads such files. Raises DataError; known late, see ``elasticflow.data.opening``."""
    from elasticflow.data.opening import kind_of

    return kind_of(path)


def names_in(path: str | Records) -> Collection[str]:
    """What a file, or several, call their columns. Raises DataError."""
    if isinstance(path, Records):
        return path.names
    found: Collection[str] = kind_of(path).names_in(path)
    return found


def reopened(path: str | Records, names: Mapping[str, Any]) -> Source:
    """See ``open_columns``; imported late, as it knows all kinds of files."""
    if isinstance(path, Records):
        return path.opened(names)
    from elasticflow.data.opening import open_columns

    return open_columns(path, names)


def kept_names(
    names: Mapping[str, str], there: Collection[str], wanted: Collection[str] | None
) -> dict[str, str]:
    """Of columns and what files call them, those that are wanted; if none is named, those that are there."""
    if wanted is not None:
        return {column: name for column, name in names.items() if column in wanted}
    return {column: name for column, name in names.items() if name in there}


def check_numbers(numbers: Rows, num_rows: int) -> None:
    """Raises IndexError unless all row numbers are in ``0..num_rows``."""
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= num_rows):
        raise IndexError(f"row numbers {numbers.min()}..{numbers.max()} of a source with {num_rows} rows")


def native(array: Array) -> Array:
    """The same values in this machine's byte order; the array itself if they are so already."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
