"""Columns whose records have different lengths, and how the records of one slice are made equally long.

What a slice is padded to follows from its own records and the rule alone, never from what was read with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.data.permutation import Rows
from elasticflow.errors import DataError
from elasticflow_ps import columns

LENGTHS = "_lengths"
"""``forward`` may take ``text_lengths`` beside a ragged column ``text``."""

Array: TypeAlias = "npt.NDArray[np.generic]"


class Pad(msgspec.Struct, frozen=True):
    """How the records of a slice are made equally long.

    value: what fills them up. multiple: their length is a multiple of it: fewer shapes. longest: what is
    longer is cut there; 0: nothing is. side: where the filling goes.
    """

    value: float | bool | str = 0
    multiple: int = 1
    longest: int = 0
    side: Literal["right", "left"] = "right"

    def __post_init__(self) -> None:
        if self.multiple < 1 or self.longest < 0 or self.side not in ("right", "left"):
            raise DataError(
                f"Pad(multiple={self.multiple}, longest={self.longest}, side={self.side!r}): multiple must "
                "be at least 1, longest at least 0 (0: nothing is cut), and side 'right' or 'left'."
            )
        if self.longest % self.multiple:
            raise DataError(
                f"Pad(multiple={self.multiple}, longest={self.longest}): longest must be a multiple of it."
            )


class Ragged:
    """n records of different lengths. values: all elements, record by record. starts: (n + 1,), the first of
    each. pad: how those of a slice are made equally long, where that is not told otherwise."""

    def __init__(self, values: Array, starts: Rows, pad: Pad | None = None) -> None:
        self.values, self.starts, self.pad = values, starts, pad

    @classmethod
    def of(cls, records: Iterable[Any], pad: Pad | None = None) -> Ragged:
        """Of arrays, which differ in their first lengths alone. Raises ValueError otherwise."""
        arrays = [np.asarray(record) for record in records]
        lengths = np.array([len(array) for array in arrays], np.int64)
        return cls(np.concatenate(arrays), _starts(lengths), pad)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.starts.nbytes

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """-1 stands for the lengths."""
        return (len(self), -1, *self.values.shape[1:])

    @property
    def lengths(self) -> Rows:
        lengths: Rows = self.starts[1:] - self.starts[:-1]
        return lengths

    def take(self, numbers: Rows) -> Ragged:
        """A new one of these records."""
        return Ragged.gathered([(self, numbers, np.arange(len(numbers)))], len(numbers))

    def __getitem__(self, part: slice) -> Ragged:
        starts = self.starts[part.start : part.stop + 1]
        return Ragged(self.values[starts[0] : starts[-1]], starts - starts[0])

    def padded(self, pad: Pad) -> tuple[Array, Rows]:
        """(n, longest, ...) and the lengths, (n,): as long as the longest of these, by the rule."""
        lengths, values = self.lengths, self.values
        cut = bool(pad.longest) and bool((lengths > pad.longest).any())
        if cut:
            lengths = np.minimum(lengths, pad.longest)
        longest = max(1, int(lengths.max(initial=0)))
        width = -(-longest // pad.multiple) * pad.multiple
        result = np.full((len(self), width, *values.shape[1:]), pad.value, values.dtype)
        if columns.takes(values, self.starts):
            columns.pad_ragged(values, self.starts, width, pad.side == "left", result)
            return result, lengths
        if cut:
            values = values.take(_places(self.starts[:-1], _starts(lengths), lengths), axis=0)
        if pad.side == "left":
            result[np.arange(width) >= (width - lengths)[:, None]] = values
        else:
            result[np.arange(width) < lengths[:, None]] = values
        return result, lengths

    @classmethod
    def joined(cls, parts: Sequence[Ragged], order: Rows) -> Ragged:
        """The records of several, one after the other, each at the place that ``order``, (n,), says."""
        ends = np.cumsum([len(part) for part in parts])
        places = np.split(order, ends[:-1])
        return cls.gathered(
            [(p, np.arange(len(p)), at) for p, at in zip(parts, places, strict=True)], len(order)
        )

    @classmethod
    def gathered(cls, parts: Sequence[tuple[Ragged, Rows, Rows]], size: int) -> Ragged:
        """So many records: of each part those with some numbers, at the places that are told."""
        lengths = np.empty(size, np.int64)
        for part, numbers, places in parts:
            lengths[places] = part.starts.take(numbers + 1) - part.starts.take(numbers)
        starts = _starts(lengths)
        like = max((part.values for part, _, _ in parts), key=lambda values: values.dtype.itemsize)
        result = cls(np.empty((int(starts[-1]), *like.shape[1:]), like.dtype), starts)
        for part, numbers, places in parts:
            _move(part, numbers, places, result)
        return result


def _move(source: Ragged, numbers: Rows, places: Rows, target: Ragged) -> None:
    """Records ``numbers`` of one to the ``places`` of another, which has as much room for each."""
    if source.dtype == target.dtype and columns.takes(source.values, source.starts, numbers, places):
        return columns.move_ragged(
            source.values, source.starts, numbers, places, target.values, target.starts
        )
    first = source.starts.take(numbers)
    lengths = source.starts.take(numbers + 1) - first
    within = _starts(lengths)
    found = source.values.take(_places(first, within, lengths), axis=0)
    target.values[_places(target.starts.take(places), within, lengths)] = found


def _starts(lengths: Rows) -> Rows:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _places(first: Rows, starts: Rows, lengths: Rows) -> Rows:
    """Where the elements lie of records that begin at ``first``, (n,). starts: see ``_starts``."""
    places = np.repeat(first - starts[:-1], lengths)
    places += np.arange(len(places))
    return places


Field: TypeAlias = "Array | Ragged"
"""What a source has of one column."""


def padded(fields: Mapping[str, Field], pads: Mapping[str, Pad | None]) -> dict[str, Array]:
    """The arrays that a slice's program is given: ragged columns made equally long, and their lengths
    beside."""
    arrays: dict[str, Array] = {}
    for name, field in fields.items():
        if isinstance(field, Ragged):
            arrays[name], arrays[name + LENGTHS] = field.padded(pads.get(name) or Pad())
        else:
            arrays[name] = field if _has_whole_strides(field) else field.copy()
    return arrays


def _has_whole_strides(array: Array) -> bool:
    """PyTorch takes no other arrays; one record's field of a packed structure is no such array, though NumPy
    calls it contiguous."""
    return array.flags.aligned and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
