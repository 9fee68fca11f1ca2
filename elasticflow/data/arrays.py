"""Records that lie in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticflow.data.files import LocalFile, identities
from elasticflow.data.permutation import Rows
from elasticflow.data.ragged import Field, Ragged
from elasticflow.data.source import Array, ArrayLike, Source, check_numbers, column_of, common_length, native
from elasticflow.errors import DataError


class ArraySource(Source):
    """Records in NumPy arrays (in memory or memory-mapped), any of which is equally cheap to read.

    what: names the source in errors. arrays: by column name, records along the first axis. mapped: files
    that some of them are mapped from.
    """

    def __init__(
        self,
        what: str,
        arrays: Mapping[str, ArrayLike | Ragged],
        positional: bool = False,
        mapped: Sequence[LocalFile] = (),
    ) -> None:
        self.columns = tuple(
            column_of(f"{what}: column {name!r}", name, array) for name, array in arrays.items()
        )
        self.num_rows = common_length(what, {name: len(array) for name, array in arrays.items()})
        self.positional = positional
        self._what = what
        self._arrays = dict(arrays)
        self._mapped = tuple(mapped)

    def __repr__(self) -> str:
        return f"{self._what} of {self.num_rows} records"

    def rows(self, numbers: Rows) -> dict[str, Field]:
        check_numbers(numbers, self.num_rows)
        found: dict[str, Field] = {
            name: array.take(numbers) if isinstance(array, Ragged) else native(_taken(array, numbers))
            for name, array in self._arrays.items()
        }
        for file in self._mapped:
            file.check_mapped()
        return found


def _taken(array: ArrayLike, numbers: Rows) -> Array:
    """These records. ``take`` first copies the whole of an array that lies otherwise, as of pandas."""
    if isinstance(array, np.ndarray) and not (array.flags.c_contiguous and array.flags.aligned):
        return np.ascontiguousarray(array[numbers])
    return array.take(numbers, axis=0)


class Arrays(ArraySource):
    """Columns from NumPy arrays, lists, PyTorch tensors on the CPU, or anything with ``__array__``.

    ``Arrays(x=images, y=labels)``; records lie along the first axis. Arrays are not copied where
    NumPy can look at them in place, so do not change them while they are in use.
    Arrays keep their dtype. Lists of Python floats become float32, lists of ints int64.
    ``Arrays(text=Ragged.of(texts))`` is for records of different lengths.
    Raises DataError if other columns are ragged, and if any are empty, of different lengths, or hold objects.
    """

    def __init__(self, **columns: Any) -> None:
        super().__init__(
            "Arrays",
            {
                name: value if isinstance(value, Ragged) else as_array(name, value)
                for name, value in columns.items()
            },
            mapped=_files_of(columns.values()),
        )

    def held(self) -> Iterator[tuple[str, Array]]:
        for name, array in self._arrays.items():
            if isinstance(array, Ragged):
                yield name, array.values
                yield f"lengths of {name}", array.starts
            else:
                yield name, np.asarray(array)

    @classmethod
    def by_position(cls, columns: tuple[Any, ...] | list[Any]) -> Arrays:
        """Columns named "0", "1", ..., bound to the arguments of ``forward`` by position."""
        source = cls(**{str(number): value for number, value in enumerate(columns)})
        source.positional = True
        return source


def _files_of(values: Iterable[Any]) -> list[LocalFile]:
    """Those that arrays are mapped from which this process does not write to, while they are there."""
    maps = [each for each in values if isinstance(each, np.memmap) and each.mode in ("r", "c")]
    names = dict.fromkeys(os.fspath(each.filename) for each in maps if each.filename)
    files = [LocalFile(name) for name in names if os.path.isfile(name)]
    identities(files)  # samples are taken
    return files


def as_array(name: str, value: Any, what: str = "Arrays") -> Array:
    """One column as an array; see ``Arrays`` for the dtype of lists. what: whose it is, for errors.

    Raises DataError if NumPy can make no rectangular array of it, or has values masked.
    """
    if np.ma.is_masked(value):
        raise DataError(
            f"{what}: column {name!r} is an array with values masked, and a column has no mask. Say what "
            "stands for them, x.filled(0), or leave those records out."
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        advice = "Give an array, or a tensor on the CPU that wants no gradient (x.detach().cpu())."
        if isinstance(value, list | tuple):
            advice = (
                "All records must have the same shape: write ef.data.Ragged.of(...) around it for records of "
                "different lengths, or make each part a column."
            )
        raise DataError(
            f"{what}: column {name!r}, a {type(value).__name__}, makes no array: {error}. {advice}"
        ) from error
    if _holds_plain_numbers(value) and array.dtype == np.float64:
        return array.astype(np.float32)
    return array


def _holds_plain_numbers(value: Any) -> bool:
    """True for (nested) lists and tuples whose elements have no dtype of their own."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, int | float) and not hasattr(value, "__array__")
