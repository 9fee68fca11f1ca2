"""What is in files of records: types, ranges, missing and most frequent values; what a run would not take."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from elasticflow.data import csv_files
from elasticflow.data.opening import is_table, open_path
from elasticflow.data.parquet import raw_tables
from elasticflow.data.ragged import Ragged
from elasticflow.data.typed import is_list, is_text

MOST_VALUES = 100_000
"""Of a column: with more different ones it has no vocabulary."""
STRETCH = 1 << 16
SHOWN = 5


class ColumnStory(msgspec.Struct):
    """Of one column. least, most, mean: of numbers, and of dates and times, the mean not. lengths: of lists.

    values: how often each occurs; None: there are more than ``MOST_VALUES``, or they are no texts or numbers.
    advice: what it takes to train on it; "": nothing.
    """

    name: str
    type: str
    records: int = 0
    missing: int = 0
    least: Any = None
    most: Any = None
    mean: float | None = None
    lengths: tuple[int, int] | None = None
    values: dict[Any, int] | None = msgspec.field(default_factory=dict)
    advice: str = ""

    def vocabulary(self) -> list[Any] | None:
        """The most frequent value first; those that occur as often in their order. None: it has none."""
        if not self.values or not all(isinstance(value, (str, int)) for value in self.values):
            return None
        return sorted(self.values, key=lambda value: (-self.values[value], value))  # type: ignore[index]


class _Column:
    def __init__(self, name: str, kind: Any) -> None:
        self.kind = kind
        self.story = ColumnStory(name, str(kind))
        self._values: Counter[Any] | None = Counter()
        self._sum = 0.0

    def add(self, column: Any) -> None:
        """Some more of it, a pyarrow ChunkedArray."""
        import pyarrow as pa
        import pyarrow.compute as pc

        story = self.story
        story.records += len(column)
        if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)  # as a run has those that are missing
        story.missing += column.null_count
        if is_list(column.type):
            lengths = pc.min_max(pc.list_value_length(column)).as_py()
            if lengths["min"] is not None:
                least, most = story.lengths or (lengths["min"], lengths["max"])
                story.lengths = min(least, lengths["min"]), max(most, lengths["max"])
            column = pc.list_flatten(column)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        self.kind = kind = column.type
        if pa.types.is_float16(kind):  # of which pyarrow finds no least and no most
            column = column.cast(pa.float32())
        if _has_order(kind) and len(column) > column.null_count:
            found = pc.min_max(column).as_py()
            story.least = found["min"] if story.least is None else min(story.least, found["min"])
            story.most = found["max"] if story.most is None else max(story.most, found["max"])
        if _is_number(kind):
            self._sum += float(pc.sum(column.cast(pa.float64())).as_py() or 0)
        if self._values is not None and (
            is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        ):
            for pair in pc.value_counts(column.drop_null()):
                self._values[pair["values"].as_py()] += pair["counts"].as_py()
            if len(self._values) > MOST_VALUES:
                self._values = None

    def told(self, *, of_text: bool = False) -> ColumnStory:
        """of_text: it is of CSV files, whose source has no rules but ``dtypes``."""
        story = self.story
        story.values = None if self._values is None else dict(self._values)
        count = story.records - story.missing
        if _is_number(self.kind) and count and story.lengths is None:
            story.mean = self._sum / count
        story.advice = "; ".join((_advice_for_text if of_text else _advice)(story, self.kind))
        return story


def _has_order(kind: Any) -> bool:
    import pyarrow as pa

    return _is_number(kind) or pa.types.is_temporal(kind)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _advice(story: ColumnStory, kind: Any) -> Iterator[str]:
    """What a source has to be told of it, in its own words."""
    import pyarrow as pa

    types = pa.types
    if types.is_nested(kind) or types.is_null(kind):
        yield "cannot be read: leave it out, or write its parts as columns of their own"
        return
    if is_text(kind):
        ids = f"hashing={{{story.name!r}: N or None}}"
        few = story.values and not (types.is_binary(kind) or types.is_large_binary(kind))
        yield f"no number: vocabularies={{{story.name!r}: [...]}} or {ids}" if few else f"no number: {ids}"
    if story.lengths and story.lengths[0] != story.lengths[1]:
        yield f"lists of different lengths: pad={{{story.name!r}: ef.data.Pad()}}"
    if story.missing and not story.lengths and not types.is_floating(kind):
        yield f"has missing values: defaults={{{story.name!r}: ...}}"


def _advice_for_text(story: ColumnStory, kind: Any) -> Iterator[str]:
    """What ``ef.data.CSV`` has to be told, or who is to read it instead."""
    import pyarrow as pa

    if is_text(kind):
        yield from (f"{each}, of ef.data.Query, which reads CSV files" for each in _advice(story, kind))
    elif story.missing and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        yield f"has missing values: dtypes={{{story.name!r}: 'float64'}} makes them NaN"
    else:
        yield from _advice(story, kind)


def describe(path: str) -> list[ColumnStory]:
    """All columns of a file, a pattern of files, or a folder of Parquet, read once. Raises DataError."""
    columns: dict[str, _Column] = {}
    for table in _tables(path):
        for name in table.column_names:
            if name not in columns:
                columns[name] = _Column(name, table.schema.field(name).type)
            columns[name].add(table.column(name))
    return [column.told(of_text=_is_csv(path)) for column in columns.values()]


def _is_csv(path: str) -> bool:
    return not is_table(path) and os.path.splitext(path)[1].lower() == ".csv"


def _tables(path: str) -> Iterator[Any]:
    import pyarrow as pa

    if is_table(path) or os.path.splitext(path)[1].lower() == ".parquet":
        yield from (table for _, table in raw_tables(path))
        return
    if _is_csv(path):
        yield from csv_files.raw_tables(path)
        return
    source = open_path(path)
    for start in range(0, source.num_rows, STRETCH):
        fields = source.rows(np.arange(start, min(start + STRETCH, source.num_rows)))
        arrays = {}
        for name, field in fields.items():
            array = field.values if isinstance(field, Ragged) else field
            if array.ndim > 1:
                width = int(np.prod(array.shape[1:]))
                arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), width)
            else:
                arrays[name] = pa.array(array)
        yield pa.table(arrays)
