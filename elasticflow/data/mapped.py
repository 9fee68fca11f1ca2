"""Records that Python makes: those of a map-style dataset, and what a program makes of the records of a
source.

A record must follow from its number, whoever reads it, and when: so before one is made all random states are
set, to what follows from the run's seed, the epoch and its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticflow.data.arrays import as_array
from elasticflow.data.held import kept_by
from elasticflow.data.listed import Listed
from elasticflow.data.permutation import Rows
from elasticflow.data.ragged import Field, Pad, Ragged
from elasticflow.data.seeding import seed_all
from elasticflow.data.source import Array, Column, Records, Source, check_numbers, column_of
from elasticflow.data.wrapped import Following
from elasticflow.errors import DataError

FIRST = 2
"""So many records say what the columns are."""


class Made(Source):
    """A source whose subclass makes one record after the other.

    pad: of columns whose records have different lengths, by name; by position, names are "0", "1", ...
    """

    def __init__(self, what: str, num_rows: int, pad: Mapping[str, Pad | float]) -> None:
        self.num_rows = num_rows
        self._what = what
        self._pads = {name: each if isinstance(each, Pad) else Pad(value=each) for name, each in pad.items()}
        self.columns: tuple[Column, ...] = ()
        if num_rows < 1:
            raise DataError(f"{what} is empty: 0 records. At least one is needed.")
        first = self.rows(np.arange(min(FIRST, num_rows)))
        if unknown := self._pads.keys() - first.keys():
            raise DataError(
                f"{what}: pad names a column {min(unknown)!r}. There are: {', '.join(map(repr, first))}."
            )
        self.columns = tuple(
            column_of(f"{what}: column {name!r}", name, field, self._pads) for name, field in first.items()
        )

    def __repr__(self) -> str:
        return f"{self._what} of {self.num_rows} records"

    def _records(self, numbers: Rows, seed: int) -> Sequence[Any]:
        """One record for each number."""
        raise NotImplementedError

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        return self.drawn(numbers, 0)

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        check_numbers(numbers, self.num_rows)
        if not len(numbers):
            return {column.name: _nothing(column) for column in self.columns}
        records = self._records(numbers, seed)
        if not self.columns:
            self.positional = not isinstance(records[0], Mapping)
        named = [self._named(int(number), record) for number, record in zip(numbers, records, strict=True)]
        names = [column.name for column in self.columns] or list(named[0])
        for number, record in zip(numbers, named, strict=True):
            if set(record) != set(names):
                raise DataError(
                    f"{self._what}: record {number} has the columns {', '.join(record)}, the first one "
                    f"{', '.join(names)}. All must have the same."
                )
        fields = {name: self._stacked(name, numbers, [record[name] for record in named]) for name in names}
        for column in self.columns:
            self._check(column, fields[column.name], numbers)
        return fields

    def _named(self, number: int, record: Any) -> Mapping[str, Any]:
        if self.positional != (not isinstance(record, Mapping)):
            raise DataError(
                f"{self._what}: record {number} is a {type(record).__name__}; the first one was "
                f"{'no dict' if self.positional else 'a dict'}. All must be of one kind."
            )
        if isinstance(record, Mapping):
            return record
        parts = record if isinstance(record, (tuple, list)) else (record,)
        return {str(place): part for place, part in enumerate(parts)}

    def _stacked(self, name: str, numbers: Rows, values: Sequence[Any]) -> Field:
        what = f"{self._what}: column {name!r}"
        if isinstance(values[0], (int, float, bool, str, bytes)):
            return as_array(name, list(values))
        arrays = [as_array(name, value) for value in values]
        if name in self._pads:
            try:
                return Ragged.of(arrays)
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{what} is padded, and its records differ in more than their first lengths: {error}."
                ) from error
        for number, array in zip(numbers, arrays, strict=True):
            if array.shape != arrays[0].shape:
                raise DataError(
                    f"{what} is of shape {arrays[0].shape} in record {numbers[0]}, and of {array.shape} in "
                    f"record {number}. With pad={{{name!r}: ef.data.Pad()}} those of a slice are made "
                    f"equally long."
                )
        return np.stack(arrays)

    def _check(self, column: Column, field: Field, numbers: Rows) -> None:
        found = column_of(f"{self._what}: column {column.name!r}", column.name, field, self._pads)
        if (found.shape, found.dtype) != (column.shape, column.dtype):
            raise DataError(
                f"{self._what}: column {column.name!r} holds {found.dtype} of shape {found.shape} in record "
                f"{numbers[0]}{' and others' if len(numbers) > 1 else ''}, but {column.dtype} of shape "
                f"{column.shape} in the first. All records must have one type."
            )


def _nothing(column: Column) -> Field:
    dtype = {"str": "U1", "bytes": "S1"}.get(column.dtype, column.dtype)
    if column.pad:
        return Ragged(np.empty((0, *column.shape[1:]), dtype), np.zeros(1, np.int64))
    return np.empty((0, *column.shape), dtype)


class Indexed(Made):
    """The records of anything with ``__len__`` and ``__getitem__``, such as a ``torch.utils.data.Dataset``.

    A record is a dict (columns by name), a tuple or list (by position), or one value. It may be made by
    chance, as augmentation does: Python's, NumPy's and the framework's random states are set before.
    Files of records that it has in a list must stay as they are, see ``Listed``.
    pad: of columns whose records have different lengths, by name ("0", "1", ... by position).
    """

    def __init__(self, records: Any, pad: Mapping[str, Pad | float] | None = None) -> None:
        self._dataset, self._listed = records, Listed(records, len(records))
        self.files = self._listed.files
        super().__init__(type(records).__name__, len(records), pad or {})

    def held(self) -> Iterator[tuple[str, Array]]:
        return kept_by(self._dataset)

    def _records(self, numbers: Rows, seed: int) -> Sequence[Any]:
        found = []
        for number in map(int, numbers):
            with self._listed.unchanged(number):
                seed_all(seed, number)
                found.append(self._dataset[number])
        return found


class Transform(Following, Made):
    """What ``make(record)`` returns for each record of a source: a dict, a tuple, or one value.

    record: a dict of the columns' values, or a tuple where they have no names. It may use random numbers, as
    ``Indexed`` says. pad: of columns whose records have different lengths.
    """

    def __init__(
        self, source: Any, make: Callable[[Any], Any], pad: Mapping[str, Pad | float] | None = None
    ) -> None:
        self.wrap(source)
        self._make = make
        super().__init__(f"Transform of {self.inner!r}", self.inner.num_rows, pad or {})

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return Transform(_inner_over(self.inner, path), self._make, self._pads)

    def _records(self, numbers: Rows, seed: int) -> Sequence[Any]:
        fields = self.inner.drawn(numbers, seed)
        made = []
        for place, number in enumerate(map(int, numbers)):
            values = {name: _value(field, place) for name, field in fields.items()}
            seed_all(seed, number)
            made.append(self._make(tuple(values.values()) if self.inner.positional else values))
        return made


def _inner_over(inner: Source, path: str | Records) -> Source:
    """All of its columns that are there: which of them the function looks at nobody knows."""
    found = inner.over(path, None)
    found.positional = inner.positional
    return found


def _value(field: Field, place: int) -> Any:
    if isinstance(field, Ragged):
        return field.values[slice(*field.starts[place : place + 2])]
    return field[place]


class Collate(Following):
    """What ``make(columns)`` returns for the records of a slice, together: a dict or a tuple of arrays.

    columns: a dict by name of arrays with the records along their first axes, ragged ones padded, with their
    lengths; a tuple where they have no names. What it returns follows from the slice alone: it is called for
    each by itself, with all random states set. It stands outermost.
    """

    makes_slices = True

    def __init__(self, source: Any, make: Callable[[Any], Any]) -> None:
        self.wrap(source)
        self._make, self.num_rows = make, self.inner.num_rows
        first = self.finish(self.inner.rows(np.arange(min(FIRST, self.num_rows))), 0)
        self.columns = tuple(
            column_of(f"Collate: column {name!r}", name, array, {}) for name, array in first.items()
        )

    def __repr__(self) -> str:
        return f"Collate of {self.inner!r}"

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return Collate(_inner_over(self.inner, path), self._make)

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        return self.inner.rows(numbers)

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        return self.inner.drawn(numbers, seed)

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        columns = self.inner.finish(fields, seed)
        seed_all(seed, 0)
        made = self._make(tuple(columns.values()) if self.inner.positional else columns)
        self.positional = not isinstance(made, Mapping)
        if not isinstance(made, (Mapping, tuple, list)) or not made:
            raise DataError(
                f"Collate: its function returned "
                f"{'nothing' if made is None else f'a {type(made).__name__}'}. It must return a dict or a "
                f"tuple of arrays, one for each column."
            )
        named = made if isinstance(made, Mapping) else {str(n): part for n, part in enumerate(made)}
        return {str(name): as_array(str(name), value) for name, value in named.items()}
