"""Lookups in embedding tables within ``forward``: what is the same in all frameworks.

A lookup reads the rows of a slice's distinct ids. Each vector of its answer is the sum of the rows of a *bag*
of ids, which without ``combine`` holds one id; the gradient of a row is the sum of its bags' gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.frameworks.ahead import NO_COLUMNS, Ahead, Asked, Ids
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.rows import (
    Grouped,
    Keys,
    Places,
    Rows,
    Values,
    first_values,
    no_rows,
    table_seed,
)
from elasticflow_ps import native

ReadRows: TypeAlias = Callable[[int, Keys], Callable[[], Values]]
"""(number of a table, keys, ascending): asks for the rows, and returns what waits for them, (k, dim) float32.

Rows are not written to. They may be waited for in another thread, one of TensorFlow's, while the one that
computes waits; in such a thread denormal numbers count as 0, so rows are better copied than computed there.
"""


class Bags(NamedTuple):
    """numbers: (n,), of each id that of its bag, ascending. sizes: (num_bags,), how many ids are in each."""

    numbers: Places
    sizes: Places


class Lookup(NamedTuple):
    """One call of a table.

    ids: n, by key. values: (k, dim), the rows of the keys. bags: None if each holds one id. shape: of the
    answer.
    """

    ids: Grouped
    values: Values
    bags: Bags | None
    shape: tuple[int, ...]


class Lookups(ABC):
    """The tables of a model, and what a call of one does.

    tables: by name. entries, specs: of each, in that order. read_rows: by default the first values, as they
    are before the first step. looked_up: of each call by now, the number of the table, the keys, and the rows
    as a tensor. unread: what waiting for rows raised since tables can be called, and nothing makes good.
    """

    def __init__(self, tables: Mapping[str, Embedding], seed: int) -> None:
        self._tables = tuple(tables.values())
        self.specs = tuple(table.spec for table in self._tables)
        self.entries = tuple(
            Entry(name, (spec.rows or 0, spec.dim), "float32", Rule.ROWS)
            for name, spec in zip(tables, self.specs, strict=True)
        )
        seeds = [table_seed(seed, name) for name in tables]

        def first_rows(number: int, keys: Keys) -> Callable[[], Values]:
            spec = self.specs[number]
            return partial(first_values, spec.initializer, seeds[number], keys, spec.dim)

        self.read_rows: ReadRows = first_rows
        """Rows of the version that is computed with."""
        self.read_next: ReadRows = first_rows
        """Rows of the next version. They may be waited for once that is the one computed with."""
        self.hurry: Callable[[], None] = _leave_it
        """Called once all that is known by then was asked for: what asks may have waited for more."""
        self.looked_up: list[tuple[int, Any, Any]] = []
        self.unread: BaseException | None = None
        self.ahead = Ahead(self._ask_ahead, lambda: self.hurry())

    @contextmanager
    def allowed(self, columns: Mapping[str, Array] = NO_COLUMNS, *, training: bool = True) -> Iterator[None]:
        """Within it tables can be called. Raises ``unread`` at the end, though the program caught it.

        columns: the slice's. What the program looks up of them as they are is asked for here, all at once.
        """
        self.unread = None
        for number, table in enumerate(self._tables):
            table.bind(partial(self.answer, number))
        try:
            self.ahead.begin(columns, training)
            yield
            self.ahead.forget_wrong()
        finally:
            self.ahead.end()
            self.looked_up.clear()
            for table in self._tables:
                table.bind(None)
            self.check_read()

    def check_read(self) -> None:
        """Raises ``unread``, if there is any: what was computed without these rows is not to be used."""
        if self.unread is not None:
            raise self.unread

    @abstractmethod
    def answer(self, number: int, ids: Any, *, combine: str | None, offsets: Any, padding: int | None) -> Any:
        """What a call of table ``number`` returns: see ``Embedding``."""

    def look_up(
        self, number: int, ids: Array, combine: str | None, offsets: Array | None, padding: int | None
    ) -> Lookup:
        """Reads the rows of ``ids``. Raises ProgramError for bad ids, and what waiting for them raises."""
        entry, spec = self.entries[number], self.specs[number]
        flat = whole = _whole(entry.name, "ids", ids).reshape(-1)
        numbers, shape = _bags(entry.name, ids, combine, offsets)
        if padding is not None:
            real = flat != padding
            numbers = np.flatnonzero(real) if numbers is None else numbers[real]
            flat = flat[real]
        if spec.rows is not None and not self._are_ids(number, flat):
            wrong = flat[(flat < 0) | (flat >= spec.rows)]
            raise ProgramError(
                f"table {entry.name!r}: there is no id {wrong[0]}; it has rows={spec.rows}, so its ids are "
                f"0..{spec.rows - 1}. With rows=None any 64-bit integer is an id."
            )
        try:
            found, rows = self.ahead.take(number, whole, padding) or self._ask(number, flat, self.read_rows)
            values = rows()
        except BaseException as error:
            self.unread = error
            raise
        assert values.shape == (len(found.keys), spec.dim), "what read_rows promises"
        values = np.require(values, np.float32, ["C", "W"])  # frameworks warn of arrays that are read-only
        bags = None
        if numbers is not None:
            bags = Bags(numbers, np.bincount(numbers, minlength=math.prod(shape)))
        return Lookup(found, values, bags, (*shape, spec.dim))

    def _are_ids(self, number: int, flat: Ids) -> bool:
        rows = self.specs[number].rows
        return rows is None or not len(flat) or 0 <= int(flat.min()) <= int(flat.max()) < rows

    def _ask(self, number: int, flat: Ids, read: ReadRows) -> Asked:
        ids = native.grouped(flat)
        return Asked(ids, read(number, ids.keys) if len(flat) else self._no_rows(number))

    def _ask_ahead(self, number: int, flat: Ids, early: bool) -> Asked | None:
        """An ``Ask``."""
        if not self._are_ids(number, flat):
            return None  # which is complained of where they are looked up
        return self._ask(number, flat, self.read_next if early else self.read_rows)

    def _no_rows(self, number: int) -> Callable[[], Values]:
        return lambda: no_rows(self.specs[number].dim).values


def _leave_it() -> None:
    """Of what has asked at once."""


def _whole(name: str, what: str, array: Array) -> npt.NDArray[np.int64]:
    """The same array, of any type of whole numbers."""
    if array.dtype.kind not in "iu":
        raise ProgramError(
            f"table {name!r}: {what} are {array.dtype}; they must be whole numbers, such as int64 "
            "(ef.hash_ids makes such of strings, in data())."
        )
    return array  # type: ignore[return-value]


def _bags(
    name: str, ids: Array, combine: str | None, offsets: Array | None
) -> tuple[Places | None, tuple[int, ...]]:
    """Of each id the number of its bag, None if each is one; the shape of all bags."""
    if combine is None:
        return None, ids.shape
    if offsets is None:
        if not ids.ndim:
            raise ProgramError(
                f"table {name!r}: combine={combine!r} is over the last axis; the ids have none."
            )
        num_bags = math.prod(ids.shape[:-1])
        return np.repeat(np.arange(num_bags), ids.shape[-1]), ids.shape[:-1]
    starts = _whole(name, "offsets", offsets).astype(np.int64)
    flat = ids.ndim == starts.ndim == 1
    sizes = np.diff(np.append(starts, len(ids))) if flat else np.empty(0, np.int64)
    if not flat or (sizes < 0).any() or sizes.sum() != len(ids):
        raise ProgramError(
            f"table {name!r}: offsets of shape {starts.shape} do not fit ids of shape {ids.shape}: both must "
            "have one axis, and offsets begin with 0, never fall, and never pass the number of ids."
        )
    return np.repeat(np.arange(len(starts)), sizes), starts.shape


def put(out: Vector, found: Iterable[tuple[int, Keys, Values]], *, onto: bool) -> None:
    """Puts the gradients of lookups into ``out``, added up in the order of the calls.

    found: of each the number of the table, the keys and the values. onto: ``out`` holds the left sibling's.
    """
    rows = [no_rows(entry.shape[1]) for entry in out.layout.tables]
    for number, keys, values in found:
        rows[number] = rows[number].plus(Rows(keys, values))
    out.rows = [left.plus(right) for left, right in zip(out.rows, rows, strict=True)] if onto else rows
