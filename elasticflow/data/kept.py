"""Columns of files as they are there, by the numbers of records: texts stay texts, dates dates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elasticflow.data.listing import ADVICE, Listing
from elasticflow.data.opening import kind_of, open_columns
from elasticflow.data.parquet import TableSource, raw_groups
from elasticflow.data.source import Source
from elasticflow.data.tables import arrow_errors
from elasticflow.errors import DataError


class KeptColumns:
    """Some columns of a file, or of several, in the order that sources have their records in.

    num_rows: of all files. Raises DataError if a column is not there.
    """

    def __init__(self, path: str, names: Sequence[str]) -> None:
        there = kind_of(path).names_in(path)
        if missing := [name for name in names if name not in there]:
            listed = ", ".join(map(repr, there))
            raise DataError(f"{path}: there is no column {missing[0]!r} to keep. There are: {listed}.")
        self._tables: _KeptTable | None = None
        self._source: Source | None = None
        if issubclass(kind := kind_of(path), TableSource):
            self._tables = _KeptTable(kind.listing_of(path), names)
            self.num_rows = int(self._tables.starts[-1])
        else:
            self._source = open_columns(path, {name: name for name in names})
            self.num_rows = self._source.num_rows

    def rows(self, first: int, last: int) -> dict[str, Any]:
        """Records ``first..last`` by column: arrays, or pyarrow's where it is Parquet."""
        if self._tables:
            return self._tables.rows(first, last)
        assert self._source is not None
        return dict(self._source.rows(np.arange(first, last)))


class _KeptTable:
    """Of a table of Parquet files, with a cache of one row group. starts: the first record of each, and the
    number of all."""

    def __init__(self, listing: Listing, names: Sequence[str]) -> None:
        self._names, self._what = list(names), listing.what
        self._groups = list(raw_groups(listing))
        self.starts = np.cumsum([0, *(group.num_rows for group in self._groups)])
        self._last: tuple[int, Any] = (-1, None)

    def rows(self, first: int, last: int) -> dict[str, Any]:
        import pyarrow as pa

        begin = int(np.searchsorted(self.starts, first, "right")) - 1
        end = int(np.searchsorted(self.starts, last, "left"))
        parts = []
        for number in range(begin, max(end, begin + 1)):
            start = int(self.starts[number])
            table = self._table(number)
            parts.append(table.slice(max(0, first - start), last - max(first, start)))
        try:
            whole = pa.concat_tables(parts)
        except pa.ArrowException as error:
            raise DataError(f"{self._what}: columns to keep differ in type: {error}.") from error
        return {name: whole.column(name) for name in self._names}

    def _table(self, number: int) -> Any:
        if self._last[0] != number:
            group = self._groups[number]
            with group.of.file.unchanged(), arrow_errors(str(group.of.file), ADVICE):
                self._last = number, group.read(self._names)
        return self._last[1]
