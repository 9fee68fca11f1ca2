"""Records of other files, with columns of the types that those trained on have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from elasticflow.data.permutation import Rows
from elasticflow.data.ragged import Field, Ragged
from elasticflow.data.source import Array, Column, Source
from elasticflow.data.wrapped import Following
from elasticflow.errors import DataError

NUMBERS = "biuf"


class AsTrained(Following):
    """Numbers get the type that they have in the data trained on, where none loses more than digits.

    path: names the records in errors. trained: the columns of the other source. names: those that are wanted.
    called: what people call a column, where the run has numbers for them, as of a tuple.
    Raises DataError if one is not there, or is of another kind or shape.
    """

    def __init__(
        self,
        path: str,
        source: Source,
        trained: Sequence[Column],
        names: Sequence[str],
        called: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._called = path, called or {}
        self.inner, self.files = source, source.files  # not wrapped: it may make slices
        self.block_starts, self.window_blocks = source.block_starts, source.window_blocks
        self.makes_slices = getattr(source, "makes_slices", False)
        self.num_rows, self.positional = source.num_rows, source.positional
        known = {column.name: column for column in trained}
        there = {column.name: column for column in source.columns}
        for name in names:
            if name not in there:
                listed = ", ".join(map(repr, there))
                raise DataError(f"{path}: there is no column {name!r}. There are: {listed}.")
            here = msgspec.structs.replace(there[name], name=self._name_of(name))
            _check(path, here, known[name], shapes=not self.makes_slices)
        self.columns = tuple(known[name] for name in known if name in names)
        self._types = {
            column.name: np.dtype(column.dtype)
            for column in self.columns
            if column.dtype not in ("str", "bytes", there[column.name].dtype)
        }

    def rows(self, numbers: Rows) -> dict[str, Field]:
        return self._typed(self.inner.rows(numbers))

    def drawn(self, numbers: Rows, seed: int) -> dict[str, Field]:
        return self._typed(self.inner.drawn(numbers, seed))

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        finished = self.inner.finish(fields, seed)
        return {name: self._cast(name, array) for name, array in finished.items()}

    @property
    def optional(self) -> tuple[str, ...]:
        return self.inner.optional

    def _typed(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        if self.makes_slices:  # the fields are those of its source
            return dict(fields)
        found: dict[str, Field] = {}
        for name in (column.name for column in self.columns):
            field = fields[name]
            if isinstance(field, Ragged):  # before it is padded: what pads may have no place in its own type
                found[name] = Ragged(self._cast(name, field.values), field.starts, field.pad)
            else:
                found[name] = self._cast(name, field)
        return found

    def _name_of(self, column: str) -> str:
        """What people call it."""
        return self._called.get(column, column)

    def _cast(self, name: str, array: Array) -> Array:
        """Raises DataError for a whole number that the type has no room for."""
        dtype = self._types.get(name, array.dtype)
        if dtype != array.dtype and dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
            least, most, room = int(array.min()), int(array.max()), np.iinfo(dtype)
            if least < room.min or most > room.max:
                found = most if most > room.max else least
                raise DataError(
                    f"{self._path}: column {self._name_of(name)!r} holds {found}, and {dtype} in the data "
                    f"trained on, which goes from {room.min} to {room.max}. Correct it, or leave such "
                    "records out."
                )
        return array.astype(dtype)


def _check(path: str, here: Column, trained: Column, *, shapes: bool) -> None:
    """shapes: those of records are to be the same."""
    alike = here.shape == trained.shape or not shapes
    kinds = _kind(here.dtype), _kind(trained.dtype)
    fits = kinds[0] == kinds[1] or kinds in (("i", "f"), ("b", "i"), ("b", "f"))
    if not (alike and fits):
        raise DataError(
            f"{path}: column {here.name!r} holds {here.dtype} of shape {list(here.shape)}, and "
            f"{trained.dtype} of shape {list(trained.shape)} in the data trained on. Convert it first."
        )


def _kind(dtype: str) -> str:
    """Whole numbers are of one kind, whatever their width and sign."""
    if dtype in ("str", "bytes"):
        return "text"
    kind = np.dtype(dtype).kind
    return "i" if kind == "u" else kind
