"""What CSV and Parquet share: which columns of a table are wanted, and their arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from elasticflow.data.blocks import Block
from elasticflow.data.ragged import Pad
from elasticflow.data.source import Array
from elasticflow.data.typed import ColumnRules, Typed
from elasticflow.errors import DataError

Selection = Mapping[str, str | Sequence[str]]


class Wanted:
    """Which columns of the file make each column of the records.

    selection: ``{"x": ["a", "b"], "y": "label"}`` stacks a and b to a (rows, 2) array and renames
    label; an empty one takes every column as it is.
    there: the columns of the file. rules: what becomes of them. Raises DataError if a column is not among
    them.
    """

    def __init__(
        self, what: str, selection: Selection, there: Sequence[str], rules: ColumnRules | None = None
    ) -> None:
        self.what = what
        self.rules = rules or ColumnRules()
        self.rules.check(what, there)
        self.selection: Selection = dict(selection) or {name: name for name in there}
        self.names = list(dict.fromkeys(name for names in self.selection.values() for name in _each(names)))
        missing = [name for name in self.names if name not in there]
        if missing:
            listed = ", ".join(repr(name) for name in there)
            raise DataError(f"{what}: there is no column {missing[0]!r}. There are: {listed}.")
        if twice := [name for name in self.names if list(there).count(name) > 1]:
            raise DataError(f"{what}: two columns are named {twice[0]!r}. Names must be unique.")
        empty = [name for name, names in self.selection.items() if not list(_each(names))]
        if empty or not self.names:
            raise DataError(f"{what}: {empty[0] if empty else 'it'} has no columns. Name at least one.")

    @property
    def pads(self) -> dict[str, Pad]:
        """Of the columns of the records."""
        pads = self.rules.pad
        return {
            column: pads[name]
            for column, name in self.selection.items()
            if isinstance(name, str) and name in pads
        }

    def over(
        self, there: Collection[str], wanted: Collection[str] | None
    ) -> tuple[dict[str, str | Sequence[str]], ColumnRules]:
        """The same selection and rules, for files with these columns. wanted: see ``Source.over``."""
        selection = {
            column: names
            for column, names in self.selection.items()
            if (set(_each(names)) <= set(there) if wanted is None else column in wanted)
        }
        named = {name for names in selection.values() for name in _each(names)} & set(there)
        return selection, self.rules.of(named)

    def fields(self, where: str, table: Any, first_record: int) -> Block:
        """The columns of a pyarrow table that are wanted, which may come by name as well. ``where`` names its
        rows in errors."""
        found = {
            name: Typed(where, name, self.rules, first_record.__add__).convert(table[name])
            for name in self.names
        }
        return {
            column: found[names] if isinstance(names, str) else _stack(where, column, names, found)
            for column, names in self.selection.items()
        }


def _each(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _stack(where: str, column: str, names: Sequence[str], found: Block) -> Array:
    """(rows, number of names): int64 if all are whole numbers, else float32."""
    arrays: list[Array] = []
    for name in names:
        array = found[name]
        if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "biuf":
            arrays.append(array)
        else:
            held = "lists" if len(array.shape) > 1 else str(array.dtype)
            raise DataError(
                f"{where}: column {name!r} holds {held}, and cannot be stacked into {column!r}. "
                f"Only numbers can; give it a name of its own, such as {name}={name!r}."
            )
    whole = all(array.dtype.kind in "biu" for array in arrays)
    for name, array in zip(names, arrays, strict=True):
        if whole and array.dtype == np.uint64 and int(array.max(initial=0)) > np.iinfo(np.int64).max:
            raise DataError(
                f"{where}: column {name!r} holds {array.max()}, and {column!r}, into which it is stacked, is "
                f"int64. Give it a name of its own, such as {name}={name!r}."
            )
    return np.stack(arrays, axis=1, dtype=np.int64 if whole else np.float32, casting="unsafe")


@contextmanager
def arrow_errors(what: str, advice: str) -> Iterator[None]:
    """Turns what pyarrow raises into a DataError that names ``what`` and gives ``advice``."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{what}: {error}. {advice}") from error
