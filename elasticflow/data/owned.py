"""Sources that a program wrote itself: what they return is looked at whenever they are asked."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from elasticflow.data.arrays import as_array
from elasticflow.data.permutation import Rows
from elasticflow.data.ragged import Field, Ragged
from elasticflow.data.source import Array, Column, Records, Source, column_of, dtype_name, native
from elasticflow.data.wrapped import Following
from elasticflow.errors import DataError

FIRST = 2
"""So many records are asked for as it is opened, and once more the other way round."""


def is_own(source: Source) -> bool:
    """Whether a program wrote what reads its records."""
    methods = (getattr(type(source), name) for name in ("rows", "drawn"))
    return any(not str(getattr(each, "__module__", "")).startswith("elasticflow.") for each in methods)


class Owned(Following):
    """The records of such a source: as many as were asked for, and of one type and shape each.

    Which are read together depends on who computes what, so one that returned others than it was asked for
    would make another model for another number of workers. Raises DataError for a source that does not say
    what it has, and if its first records are not as it says, or others when they are asked for in turn.
    """

    def __init__(self, what: str, source: Source) -> None:
        self.inner, self._what = source, f"{what}, {type(source).__name__}"
        self.columns, self.num_rows = self._told_columns(), self._told_rows()
        self.positional, self.files = source.positional, source.files
        self.block_starts, self.window_blocks = source.block_starts, source.window_blocks
        self._check_first()

    def __repr__(self) -> str:
        return f"{type(self.inner).__name__} of {self.num_rows} records"

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return self.inner.over(path, wanted)

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        return self._checked(self.inner.rows, numbers)

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        return self._checked(lambda mine: self.inner.drawn(mine, seed), numbers)

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        return self.inner.finish(fields, seed)

    @property
    def optional(self) -> tuple[str, ...]:
        return self.inner.optional

    def _check_first(self) -> None:
        numbers = np.arange(min(FIRST, self.num_rows))
        torch = sys.modules.get("torch")  # who loads it only now has drawn nothing
        turned, before = numbers[::-1], _random_states(torch)
        first = self.drawn(numbers, 0)
        if type(self.inner).drawn is Source.drawn and _random_states(torch) != before:
            raise DataError(
                f"{self._what}: rows() uses random numbers, so its records would depend on which are read "
                "together. Do that in the function of an ef.data.Transform, which may. What needs some to "
                "work, such as PyTorch's DataLoader, is to have a generator= of its own."
            )
        again = self.drawn(turned, 0)
        if any(_bits(_of(field, turned)) != _bits(again[name]) for name, field in first.items()):
            raise DataError(
                f"{self._what}: rows() returned other records for the numbers {turned.tolist()} than for "
                f"{numbers.tolist()}. It must return those with these numbers, in their order (databases, "
                "say, have one of their own), and they must follow from nothing else."
            )

    def _told_columns(self) -> tuple[Column, ...]:
        told: Any = getattr(self.inner, "columns", None)
        names = [each.name for each in told if isinstance(each, Column)] if _is_list(told) else []
        if not names or len(set(names)) != len(told):
            raise DataError(
                f"{self._what}: its 'columns' are {told!r}. They must be a tuple of ef.data.Column(name, "
                "shape, dtype), one for each column, of a name of its own: shape of one record, such as (8,)."
            )
        return tuple(map(self._plain, told))

    def _plain(self, column: Column) -> Column:
        """As other sources have it, whatever stands for its shape and dtype."""
        shape: Any = column.shape
        try:
            dtype = np.dtype(column.dtype)
            shape = tuple(int(each) for each in (shape if _is_list(shape) else (shape,)))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self._what}: its column {column.name!r} is of shape {column.shape!r} and dtype "
                f"{column.dtype!r}. They must be the shape of one record, such as (8,), or () of a number, "
                "and NumPy's name of a type, such as 'float32', or 'str'."
            ) from error
        return msgspec.structs.replace(column, shape=shape, dtype=dtype_name(dtype))

    def _told_rows(self) -> int:
        told: Any = getattr(self.inner, "num_rows", None)
        if not isinstance(told, int | np.integer) or isinstance(told, bool) or told < 1:
            raise DataError(
                f"{self._what}: its 'num_rows' is {told!r}. It must be the number of records, 1 at least."
            )
        return int(told)

    def _checked(self, read: Callable[[Rows], Any], numbers: Rows) -> dict[str, Field]:
        found = read(numbers.copy())  # it may write there
        if not isinstance(found, Mapping):
            raise DataError(
                f"{self._what}: rows() returned "
                f"{'nothing' if found is None else f'a {type(found).__name__}'}. It must return a dict of "
                "arrays, one for each column, the records along their first axes."
            )
        return {column.name: self._column(column, found, numbers) for column in self.columns}

    def _column(self, column: Column, found: Mapping[str, Any], numbers: Rows) -> Field:
        what = f"{self._what}: rows() returned "
        if column.name not in found:
            there = ", ".join(map(repr, found)) or "none"
            raise DataError(f"{what}the columns {there}, and its 'columns' name {column.name!r} as well.")
        given = found[column.name]
        field = given if isinstance(given, Ragged) else _alone(as_array(column.name, given, self._what))
        is_one = column_of(f"{self._what}: column {column.name!r}", column.name, field)
        if len(field) != len(numbers):
            raise DataError(
                f"{what}{len(field)} records of column {column.name!r}, and was asked for {len(numbers)}, "
                f"from {int(numbers[0]) if len(numbers) else 'none'} on. It must return one for each number, "
                "in their order."
            )
        if len(numbers) and (is_one.shape, is_one.dtype) != (column.shape, column.dtype):
            raise DataError(
                f"{what}{is_one.dtype} of shape {is_one.shape} for column {column.name!r} (record "
                f"{int(numbers[0])}{' and others' if len(numbers) > 1 else ''}), which its 'columns' call "
                f"{column.dtype} of shape {column.shape}. All records must be so, whatever is read with "
                "them; those of different lengths are an ef.data.Ragged.of(...), of shape (-1,)."
            )
        return field


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _alone(array: Array) -> Array:
    """An array that nobody writes to once it is returned, laid out as others are."""
    array = native(array)
    return array if array.flags.owndata and array.flags.c_contiguous else array.copy(order="C")


def _of(field: Field, places: Rows) -> Field:
    return field.take(places) if isinstance(field, Ragged) else field.take(places, axis=0)


def _bits(field: Field) -> bytes:
    if isinstance(field, Ragged):
        return field.starts.tobytes() + field.values.tobytes()
    return field.tobytes()


def _random_states(torch: Any) -> tuple[object, ...]:
    """Of Python, NumPy, whatever its generator, and PyTorch, if that is loaded."""
    numpy = pickle.dumps(np.random.get_state(legacy=False))
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes() if torch else b""
