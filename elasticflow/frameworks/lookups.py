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
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticflow.embedding import Embedding
from elasticflow.errors import ProgramError
from elasticflow.layout import Array, Entry, Rule, Vector
from elasticflow.rows import (
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

NO_COLUMNS: Mapping[str, Array] = MappingProxyType({})
TRIES = 3
"""In so many slices it is found out which columns of the data are looked up as they are."""


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


class _Guess(NamedTuple):
    """A column of the data is looked up in a table, but for the ids that stand for nothing."""

    number: int
    column: str
    padding: int | None


class _Ahead(NamedTuple):
    """A guess whose rows, of a version, were asked for before they were needed. flat: the ids."""

    version: int
    guess: _Guess
    flat: npt.NDArray[np.int64]
    ids: Grouped
    rows: Callable[[], Values]


class Lookups(ABC):
    """The tables of a model, and what a call of one does.

    tables: by name. entries, specs: of each, in that order. read_rows: by default the first values, as they
    are before the first step. looked_up: of each call by now, the number of the table, the keys, and the rows
    as a tensor. unread: what ``read_rows`` raised since tables can be called, and nothing makes good.
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
        self._version = -1
        self.looked_up: list[tuple[int, Any, Any]] = []
        self.unread: BaseException | None = None
        self._guesses: dict[_Guess, None] = {}
        """In the order in which they were found."""
        self._tries = TRIES
        self._columns = NO_COLUMNS
        self._early: list[_Ahead] = []
        """Of the next version, or of this one by now."""
        self._ahead: list[_Ahead] = []
        """In this slice."""

    def enter(self, version: int) -> None:
        """What is computed from now on is so with this version; -1: with none that there is yet."""
        self._version = version
        self._early = [ahead for ahead in self._early if ahead.version == version >= 0]

    def ask_early(self, columns: Mapping[str, Array]) -> None:
        """Asks for what a slice with these columns will look up of the next version, unless that was done."""
        if self._version >= 0 and not any(ahead.version > self._version for ahead in self._early):
            self._early += self._ask_for(columns, self._version + 1, self.read_next)

    @contextmanager
    def allowed(self, columns: Mapping[str, Array] = NO_COLUMNS) -> Iterator[None]:
        """Within it tables can be called. Raises ``unread`` at the end, though the program caught it.

        columns: the slice's. What the program looks up of them as they are is asked for here, all at once.
        """
        self.unread = None
        self._columns = columns
        self._ahead += self._ask_for(columns, self._version, self.read_rows)
        for number, table in enumerate(self._tables):
            table.bind(partial(self.answer, number))
        try:
            yield
            for ahead in self._ahead:
                del self._guesses[ahead.guess]
        finally:
            self.looked_up.clear()
            self._ahead.clear()
            self._columns, self._tries = NO_COLUMNS, max(0, self._tries - 1)
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
        """Reads the rows of ``ids``. Raises ProgramError for bad ids, and whatever ``read_rows`` raises."""
        entry, spec = self.entries[number], self.specs[number]
        flat = _whole(entry.name, "ids", ids).reshape(-1)
        numbers, shape = _bags(entry.name, ids, combine, offsets)
        if self._tries:
            self._learn(number, flat, padding)
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
            found, rows = self._asked(number, flat) or self._ask(number, flat, self.read_rows)
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

    def _are_ids(self, number: int, flat: npt.NDArray[np.int64]) -> bool:
        rows = self.specs[number].rows
        return rows is None or not len(flat) or 0 <= int(flat.min()) <= int(flat.max()) < rows

    def _ask(
        self, number: int, flat: npt.NDArray[np.int64], read: ReadRows
    ) -> tuple[Grouped, Callable[[], Values]]:
        """Asks for rows; what is returned last waits for them."""
        ids = native.grouped(flat)
        return ids, read(number, ids.keys) if len(flat) else self._no_rows(number)

    def _no_rows(self, number: int) -> Callable[[], Values]:
        return lambda: no_rows(self.specs[number].dim).values

    def _learn(self, number: int, flat: npt.NDArray[np.int64], padding: int | None) -> None:
        """Looks for a column that holds just these ids."""
        for name, column in self._columns.items():
            if column.dtype.kind in "iu" and column.size == len(flat) > 0:
                if np.array_equal(column.reshape(-1), flat):
                    self._guesses[_Guess(number, name, padding)] = None
                    return

    def _ask_for(self, columns: Mapping[str, Array], version: int, read: ReadRows) -> Iterator[_Ahead]:
        """What is guessed to be looked up, as far as it was not asked for early.

        A guess that proves wrong costs a question, and is not made again.
        """
        for guess in self._guesses:
            column = columns.get(guess.column)
            if column is not None:
                flat = _whole(guess.column, "ids", column).reshape(-1)
                flat = flat if guess.padding is None else flat[flat != guess.padding]
                if early := self._asked_early(version, guess, flat):
                    yield early
                elif self._are_ids(guess.number, flat):
                    yield _Ahead(version, guess, flat, *self._ask(guess.number, flat, read))

    def _asked_early(self, version: int, guess: _Guess, flat: npt.NDArray[np.int64]) -> _Ahead | None:
        """What was asked for of that version, if it was just that; once."""
        for place, early in enumerate(self._early):
            if early[:2] == (version, guess) and np.array_equal(early.flat, flat):
                return self._early.pop(place)
        return None

    def _asked(self, number: int, flat: npt.NDArray[np.int64]) -> tuple[Grouped, Callable[[], Values]] | None:
        """What was asked for ahead, if it was just that; once."""
        for place, ahead in enumerate(self._ahead):
            if ahead.guess.number == number and np.array_equal(ahead.flat, flat):
                del self._ahead[place]
                return ahead.ids, ahead.rows
        return None


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
