"""What CSV and Parquet share: which columns of a table are wanted, and their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from elasticflow.data.blocks import Block
from elasticflow.data.source import Array, native
from elasticflow.errors import DataError

Selection = Mapping[str, str | Sequence[str]]


class Wanted:
    """Which columns of the file make each column of the records.

    selection: ``{"x": ["a", "b"], "y": "label"}`` stacks a and b to a (rows, 2) array and renames
    label; an empty one takes every column as it is.
    there: the columns of the file. Raises DataError if a column is not among them.
    """

    def __init__(self, what: str, selection: Selection, there: Sequence[str]) -> None:
        self.what = what
        self.selection: Selection = dict(selection) or {name: name for name in there}
        self.names = list(dict.fromkeys(name for names in self.selection.values() for name in _each(names)))
        missing = [name for name in self.names if name not in there]
        if missing:
            listed = ", ".join(repr(name) for name in there)
            raise DataError(f"{what}: there is no column {missing[0]!r}. There are: {listed}.")
        empty = [name for name, names in self.selection.items() if not list(_each(names))]
        if empty or not self.names:
            raise DataError(f"{what}: {empty[0] if empty else 'it'} has no columns. Name at least one.")

    def arrays(self, where: str, table: Any) -> Block:
        """The columns of a pyarrow table that are wanted. ``where`` names its rows in errors."""
        found = {name: _to_numpy(where, name, table.column(name)) for name in self.names}
        return {
            column: found[names] if isinstance(names, str) else _stack(where, column, names, found)
            for column, names in self.selection.items()
        }


def _each(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _stack(where: str, column: str, names: Sequence[str], found: Block) -> Array:
    """(rows, number of names): int64 if all are whole numbers, else float32."""
    arrays = [found[name] for name in names]
    for name, array in zip(names, arrays, strict=True):
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: column {name!r} holds {array.dtype}, and cannot be stacked into {column!r}. "
                f"Only numbers can; give it a name of its own, such as {name}={name!r}."
            )
    whole = all(array.dtype.kind in "biu" for array in arrays)
    return np.stack(arrays, axis=1, dtype=np.int64 if whole else np.float32, casting="unsafe")


def _to_numpy(where: str, name: str, column: Any) -> Array:
    """One column of a table: (rows,), or (rows, length) for lists that all have one length.

    column: a pyarrow ChunkedArray. Raises DataError for missing values (other than in floats, where
    they are NaN), for lists of different lengths, and for types that NumPy has no arrays of.
    """
    import pyarrow as pa

    what = f"{where}: column {name!r}"
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count and not pa.types.is_floating(column.type):
        raise DataError(
            f"{what}, of type {column.type}, has {column.null_count} missing values. "
            "Only columns of floats may (they become NaN). Fill them, or leave the column out."
        )
    if _is_list(column.type):
        return _lists_to_numpy(what, name, column)
    array: Array = column.to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        array = array.astype("U")
    if array.dtype.kind == "O":
        raise DataError(
            f"{what} is of type {column.type}. Allowed are numbers, booleans, strings, dates, and lists "
            "of numbers of one length. Convert the column first, or leave it out."
        )
    return native(array)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists_to_numpy(what: str, name: str, column: Any) -> Array:
    """(rows, length, ...): lists nest to further axes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"{what} holds lists of {min(lengths)} to {max(lengths)} elements. All must have the same "
            "length: pad them, or leave the column out."
        )
    flat = pc.list_flatten(column)
    if not isinstance(flat, pa.ChunkedArray):
        flat = pa.chunked_array([flat])
    elements = _to_numpy(what, name, flat)
    return elements.reshape(len(column), lengths[0] if lengths else 0, *elements.shape[1:])


@contextmanager
def arrow_errors(what: str, advice: str) -> Iterator[None]:
    """Turns what pyarrow raises into a DataError that names ``what`` and gives ``advice``."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{what}: {error}. {advice}") from error
