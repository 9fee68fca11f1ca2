"""Rows that are asked for before they are looked up.

A lookup is a question to servers and an answer, so a program with many tables would wait for each. What
most look up are whole columns of the data: which these are is found out in the first slices, and later the
rows for all of them are asked for at once, before ``forward`` is called; or even before the version is made.
An answer is used only by a lookup of the very ids that were asked for. A guess that proves wrong costs a
question, and is not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticflow.step.layout import Array
from elasticflow.step.rows import EARLY_MOST, Grouped, Values

Ids: TypeAlias = npt.NDArray[np.int64]
NO_COLUMNS: Mapping[str, Array] = MappingProxyType({})
TRIES = 3
"""In so many slices of a kind it is found out what is looked up in them."""


class Asked(NamedTuple):
    """Distinct ids, and what waits for their rows."""

    ids: Grouped
    rows: Callable[[], Values]


Ask: TypeAlias = Callable[[int, Ids, bool], Asked | None]
"""(number of a table, ids, whether of the next version): asks for rows. None: it has not all these ids."""


class _Guess(NamedTuple):
    """A column of the data is looked up in a table, but for the ids that stand for nothing."""

    number: int
    column: str
    padding: int | None


class _LookupAhead(NamedTuple):
    """What was asked for, of a version, because of a guess. flat: the whole column."""

    version: int
    guess: _Guess
    flat: Ids
    asked: Asked


class _Habit:
    """What is looked up in slices of one kind. guesses: in the order in which they were found."""

    def __init__(self) -> None:
        self.guesses: dict[_Guess, None] = {}
        self.tries = TRIES


class Ahead:
    """Of one model's tables. Slices begin and end; in between rows that were asked for are taken.

    asked: called when all was asked for that is asked for together.
    """

    def __init__(self, ask: Ask, asked: Callable[[], None]) -> None:
        self._ask, self._asked = ask, asked
        self._training, self._testing = _Habit(), _Habit()
        self._habit = self._training
        self._columns = NO_COLUMNS
        self._version = -1
        self._early: list[_LookupAhead] = []
        """Of the next version, or of this one by now."""
        self._open: list[_LookupAhead] = []
        """Of this slice."""

    def enter(self, version: int) -> None:
        """What is computed from now on is so with this version; -1: with none that there is yet."""
        self._version = version
        self._early = [each for each in self._early if each.version == version >= 0]

    def ask_early(self, columns: Mapping[str, Array]) -> None:
        """Asks for what a slice of training will look up of the next version, unless that was done."""
        if self._version >= 0 and not any(each.version > self._version for each in self._early):
            self._early += islice(self._questions(self._training, columns, early=True), EARLY_MOST)
            self._asked()

    def begin(self, columns: Mapping[str, Array], training: bool) -> None:
        """A slice with these columns begins: asks for what it will look up."""
        self._columns, self._habit = columns, self._training if training else self._testing
        self._open = list(self._questions(self._habit, columns, early=False))
        self._asked()

    def end(self) -> None:
        """The slice ends."""
        if len(self._columns):
            self._habit.tries = max(0, self._habit.tries - 1)
        self._open, self._columns = [], NO_COLUMNS

    def forget_wrong(self) -> None:
        """The slice has looked up all it looks up: guesses that nothing came of were wrong."""
        for question in self._open:
            self._habit.guesses.pop(question.guess, None)

    def take(self, number: int, flat: Ids, padding: int | None) -> Asked | None:
        """What was asked for, for a lookup of these ids; each once. None: nothing was."""
        if self._habit.tries:
            self._learn(number, flat, padding)
        for place, question in enumerate(self._open):
            if _is_for(question, number, flat, padding):
                return self._open.pop(place).asked
        return None

    def _learn(self, number: int, flat: Ids, padding: int | None) -> None:
        """Finds the columns that hold just these ids."""
        for name, column in self._columns.items():
            if _may_be_ids(column) and column.size == len(flat) > 0:
                if np.array_equal(column.reshape(-1), flat):
                    self._habit.guesses[_Guess(number, name, padding)] = None

    def _questions(
        self, habit: _Habit, columns: Mapping[str, Array], *, early: bool
    ) -> Iterator[_LookupAhead]:
        """Those that the habit calls for, asked by now, or early enough; of columns that are alike, one."""
        version = self._version + early
        asked_for: list[_LookupAhead] = []
        for guess in habit.guesses:
            column = columns.get(guess.column)
            if column is None or not _may_be_ids(column):
                continue
            flat = np.array(column, np.int64).reshape(-1)  # a copy: the program may change its column
            if any(_is_for(other, guess.number, flat, guess.padding) for other in asked_for):
                continue
            question = self._asked_early(version, guess, flat) or self._question(version, guess, flat, early)
            if question:
                asked_for.append(question)
                yield question

    def _question(self, version: int, guess: _Guess, flat: Ids, early: bool) -> _LookupAhead | None:
        real = flat if guess.padding is None else flat[flat != guess.padding]
        asked = self._ask(guess.number, real, early)
        return _LookupAhead(version, guess, flat, asked) if asked else None

    def _asked_early(self, version: int, guess: _Guess, flat: Ids) -> _LookupAhead | None:
        """What was asked for of that version, if it was just that; once."""
        for place, early in enumerate(self._early):
            if (early.version, early.guess) == (version, guess) and np.array_equal(early.flat, flat):
                return self._early.pop(place)
        return None


def _is_for(question: _LookupAhead, number: int, flat: Ids, padding: int | None) -> bool:
    """Whether it asks for just what is looked up."""
    guess = question.guess
    return (guess.number, guess.padding) == (number, padding) and np.array_equal(question.flat, flat)


def _may_be_ids(column: Array) -> bool:
    return column.dtype.kind in "iu"
