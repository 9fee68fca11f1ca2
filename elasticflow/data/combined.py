"""Sources made of others: a part of one, one several times, several in a row or mixed, one by chances.

Records keep their numbers, those of a later source after those of an earlier one; only which comes when is
another. That remains a pure function of seed, epoch and position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticflow.data.opening import one_source
from elasticflow.data.permutation import Rows, keys_of_window, permute
from elasticflow.data.ragged import Field, Ragged
from elasticflow.data.source import Array, Order, Records, Source, check_numbers
from elasticflow.data.wrapped import Wrapping, check_inner
from elasticflow.errors import DataError
from elasticflow.hashing import GAMMA, mix, mixed

PARTS = 1000
"""Shares are whole parts of so many: each so many records of a mixture have them exactly."""
BLOCK_ROWS = 1 << 14
"""Of a source without blocks, beside others that have some."""


class Wrapped(Wrapping):
    """The records of another source, all of them."""

    def __init__(self, spec: Any) -> None:
        self.wrap(spec)
        self.columns, self.num_rows = self.inner.columns, self.inner.num_rows
        self.positional = self.inner.positional

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return self.inner.over(path, wanted)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.inner!r}"

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        return self.inner.rows(numbers)

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        return self.inner.drawn(numbers, seed)

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        return self.inner.finish(fields, seed)

    @property
    def optional(self) -> tuple[str, ...]:
        return self.inner.optional


class Take(Wrapped):
    """The first ``count`` records of a source."""

    def __init__(self, source: Any, count: int) -> None:
        super().__init__(source)
        _check_count("Take", "count", count)
        if self.inner.epoch_records != self.inner.num_rows:
            raise DataError(
                "Take: its source repeats or mixes records; take first, then repeat, mix or weigh."
            )
        self.num_rows = min(count, self.inner.num_rows)
        if self.block_starts is not None:
            whole = self.block_starts[self.block_starts < self.num_rows]
            self.block_starts = np.append(whole, self.num_rows)

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        check_numbers(numbers, self.num_rows)
        return super().rows(numbers)


class Repeat(Wrapped):
    """An epoch of ``times`` passes over a source, each in an order of its own."""

    def __init__(self, source: Any, times: int) -> None:
        super().__init__(source)
        _check_count("Repeat", "times", times)
        self._times = times

    @property
    def epoch_records(self) -> int:
        return self._times * self.inner.epoch_records

    def shuffle(self, seed: int) -> Order:
        return _Passes(self.inner.shuffle(seed), self.inner.epoch_records, self._times)


class _Passes:
    """The order of several epochs in one."""

    def __init__(self, order: Order, length: int, times: int) -> None:
        self._order, self._length, self._times = order, length, times

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        if not 0 <= start <= stop <= self._times * self._length:
            raise ValueError(f"positions {start}..{stop} of {self._times} times {self._length}")
        first = epoch * self._times * self._length
        return stretch(self._order, self._length, first + start, first + stop)

    def next_window(self, epoch: int, position: int) -> Rows:
        each, inside = divmod(epoch * self._times * self._length + max(0, position), self._length)
        rows = self._order.next_window(each, inside if position >= 0 else -1)
        return rows if len(rows) else self._order.next_window(each + 1, -1)


def stretch(order: Order, length: int, start: int, stop: int) -> Rows:
    """The rows at positions ``start..stop`` of all epochs in a row, of ``length`` records each."""
    parts: list[Rows] = []
    while start < stop:
        epoch, inside = divmod(start, length)
        count = min(stop - start, length - inside)
        parts.append(order.rows(epoch, inside, inside + count))
        start += count
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class Weighted(Wrapped):
    """An epoch of as many records as the source has, each drawn with a chance in proportion to its weight,
    with replacement: rare ones more often, those of weight 0 never.

    weights: (num_rows,) numbers >= 0, by record. Any record may be next, so it is for data in memory. (To
    weigh the cost of records instead, make their weights a column.)
    """

    def __init__(self, source: Any, weights: npt.ArrayLike) -> None:
        super().__init__(source)
        chances = np.asarray(weights, np.float64)
        if chances.shape != (self.num_rows,):
            raise DataError(
                f"Weighted: weights of shape {chances.shape} for {self.num_rows} records. Give one for each."
            )
        wrong = np.flatnonzero(~((chances >= 0) & np.isfinite(chances)))
        if len(wrong) or not chances.any():
            found = f"that of record {wrong[0]} is {chances[wrong[0]]}" if len(wrong) else "all of them are 0"
            raise DataError(f"Weighted: weights must be numbers >= 0, and not all 0; {found}.")
        self.block_starts = None
        self._bounds = np.cumsum(chances)

    def held(self) -> Iterator[tuple[str, Array]]:
        yield from self.inner.held()
        yield "sums of weights", self._bounds

    def shuffle(self, seed: int) -> Order:
        return _Draws(self._bounds, seed)


class _Draws:
    """bounds: (num_rows,) sums of the weights up to each record."""

    def __init__(self, bounds: npt.NDArray[np.float64], seed: int) -> None:
        self._bounds, self._seed = bounds, seed

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        if not 0 <= start <= stop <= len(self._bounds):
            raise ValueError(f"positions {start}..{stop} of {len(self._bounds)} draws")
        key = keys_of_window(self._seed, epoch, 0)[0]
        words = mixed((np.arange(start, stop, dtype=np.uint64) + np.uint64(1)) * GAMMA ^ key)
        unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        places = np.searchsorted(self._bounds, unit * self._bounds[-1], side="right")
        last = np.searchsorted(self._bounds, self._bounds[-1])  # of a weight that is not 0
        rows: Rows = np.minimum(places, last).astype(np.int64)
        return rows

    def next_window(self, epoch: int, position: int) -> Rows:
        return np.empty(0, np.int64)


class Concat(Source):
    """The records of several sources, one after the other; an epoch visits each once, all shuffled
    together."""

    def __init__(self, *sources: Any) -> None:
        kind = type(self).__name__
        self._sources = [one_source(f"{kind}: source {n}", each) for n, each in enumerate(sources)]
        if not self._sources:
            raise DataError(f"{kind} has no sources. Give it at least one.")
        first = self._sources[0]
        for number, other in enumerate(self._sources[1:], 1):
            if (first.columns, first.positional) != (other.columns, other.positional):
                raise DataError(
                    f"{kind}: source {number} has the columns {_described(other)}, the first "
                    f"{_described(first)}. All must have the same, in one order and of one type."
                )
        self.columns, self.positional = first.columns, first.positional
        self.files = tuple(file for source in self._sources for file in source.files)
        self._starts = np.concatenate([[0], np.cumsum([source.num_rows for source in self._sources])])
        self.num_rows = int(self._starts[-1])
        if any(source.block_starts is not None for source in self._sources):
            pairs = zip(self._sources, self._starts, strict=False)
            starts = [_blocks(source)[:-1] + start for source, start in pairs]
            self.block_starts = np.append(np.concatenate(starts), self.num_rows)
            self.window_blocks = max(1, min(source.window_blocks for source in self._sources))
        self._check_plain()

    def held(self) -> Iterator[tuple[str, Array]]:
        return chain.from_iterable(source.held() for source in self._sources)

    def _check_plain(self) -> None:
        for source in self._sources:
            check_inner(type(self).__name__, source)
            if source.epoch_records != source.num_rows or isinstance(source, (Repeat, Weighted, Mix)):
                raise DataError(
                    f"{type(self).__name__}: {source!r} has an order of its own; concatenate first, then "
                    "repeat, mix or weigh."
                )

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return self._sources[0].over(path, wanted)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {', '.join(map(repr, self._sources))}"

    def rows(self, numbers: Rows) -> Mapping[str, Field]:
        return self._gathered(numbers, None)

    def drawn(self, numbers: Rows, seed: int) -> Mapping[str, Field]:
        return self._gathered(numbers, seed)

    def finish(self, fields: Mapping[str, Field], seed: int) -> dict[str, Array]:
        return self._sources[0].finish(fields, seed)

    @property
    def optional(self) -> tuple[str, ...]:
        return self._sources[0].optional

    def _gathered(self, numbers: Rows, seed: int | None) -> Mapping[str, Field]:
        check_numbers(numbers, self.num_rows)
        parts: list[Mapping[str, Field]] = []
        order: list[Rows] = []
        for source, places, local in self._split(numbers):
            parts.append(source.rows(local) if seed is None else source.drawn(local, seed))
            order.append(places)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return self._sources[0].rows(numbers)
        places = np.concatenate(order)
        return {name: _joined([part[name] for part in parts], places) for name in parts[0]}

    def _split(self, numbers: Rows) -> list[tuple[Source, Rows, Rows]]:
        """Of each source that is asked: the places in ``numbers``, and its own numbers."""
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        found = []
        for owner, source in enumerate(self._sources):
            places = np.flatnonzero(owners == owner)
            if len(places):
                found.append((source, places, numbers[places] - self._starts[owner]))
        return found

    def prefetch(self, numbers: Rows) -> None:
        for source, _, local in self._split(numbers):
            source.prefetch(local)


class Mix(Concat):
    """Several sources by shares: ``Mix((clicks, 0.9), (new_clicks, 0.1), records=1_000_000)``.

    Each thousand records have the shares exactly, rounded to a thousandth. Each source is visited in a
    shuffled order of its own, and begun anew when it is through; an epoch goes on where the one before has
    ended. records: of an epoch; without it as many as all sources have together.
    """

    def __init__(self, *shares: tuple[Any, float], records: int = 0) -> None:
        if not shares or not all(isinstance(each, tuple) and len(each) == 2 for each in shares):
            raise DataError("Mix takes pairs of a source and its share, such as Mix((old, 0.9), (new, 0.1)).")
        super().__init__(*(source for source, _ in shares))
        self._counts = _counts([share for _, share in shares])
        if records:
            _check_count("Mix", "records", records)
        self._records = records or self.num_rows

    @property
    def epoch_records(self) -> int:
        return self._records

    def shuffle(self, seed: int) -> Order:
        orders = [source.shuffle(mix(seed, number)) for number, source in enumerate(self._sources)]
        lengths = [source.num_rows for source in self._sources]
        return _Mixture(orders, lengths, self._counts, self._records, seed)


class _Mixture:
    """counts: of each source's records in ``PARTS``."""

    def __init__(
        self, orders: Sequence[Order], lengths: Sequence[int], counts: Sequence[int], records: int, seed: int
    ) -> None:
        self._orders, self._lengths, self._counts = orders, lengths, counts
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._records, self._seed = records, seed

    def _first(self, epoch: int, window: int, number: int) -> int:
        """Where in the row of all its epochs a source is when a window begins."""
        return (epoch * -(-self._records // PARTS) + window) * self._counts[number]

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        if not 0 <= start <= stop <= self._records:
            raise ValueError(f"positions {start}..{stop} of {self._records} records")
        if start == stop:
            return np.empty(0, np.int64)
        first, last = start // PARTS, (stop - 1) // PARTS
        rows = np.concatenate([self._window(epoch, window) for window in range(first, last + 1)])
        return rows[start - first * PARTS : stop - first * PARTS]

    def _window(self, epoch: int, window: int) -> Rows:
        parts = []
        for number, (order, length, count) in enumerate(
            zip(self._orders, self._lengths, self._counts, strict=True)
        ):
            first = self._first(epoch, window, number)
            parts.append(stretch(order, length, first, first + count) + self._starts[number])
        places = permute(np.arange(PARTS, dtype=np.uint64), PARTS, keys_of_window(self._seed, epoch, window))
        rows: Rows = np.concatenate(parts)[places.astype(np.int64)]
        return rows

    def next_window(self, epoch: int, position: int) -> Rows:
        found = []
        for number, (order, length) in enumerate(zip(self._orders, self._lengths, strict=True)):
            each, inside = divmod(self._first(epoch, max(0, position) // PARTS, number), length)
            rows = order.next_window(each, inside)
            found.append((rows if len(rows) else order.next_window(each + 1, -1)) + self._starts[number])
        return np.concatenate(found)


def _counts(shares: Sequence[float]) -> list[int]:
    """Of a thousand, by the largest remainders. Raises DataError for shares that are none."""
    wanted = np.asarray(shares, np.float64)
    if not (np.isfinite(wanted).all() and (wanted > 0).all()):
        raise DataError(f"Mix: shares {list(shares)} must be numbers > 0, such as 0.9 and 0.1.")
    exact = wanted / wanted.sum() * PARTS
    counts = np.floor(exact).astype(int)
    for number in np.argsort(counts - exact, kind="stable")[: PARTS - counts.sum()]:
        counts[number] += 1
    if (counts == 0).any():
        raise DataError(
            f"Mix: share {shares[int(np.argmin(counts))]} is less than a thousandth of all: no record would "
            "ever come of it. Leave the source out, or give it more."
        )
    return [int(count) for count in counts]


def _blocks(source: Source) -> Rows:
    if source.block_starts is not None:
        return source.block_starts
    return np.append(np.arange(0, source.num_rows, BLOCK_ROWS), source.num_rows)


def _joined(parts: Sequence[Field], places: Rows) -> Field:
    if ragged := [part for part in parts if isinstance(part, Ragged)]:
        return Ragged.joined(ragged, places)
    together = np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    result = np.empty_like(together)
    result[places] = together
    return result


def _described(source: Source) -> str:
    named = ", ".join(f"{each.name} ({each.dtype} {list(each.shape)})" for each in source.columns)
    return f"{named}{' by position' if source.positional else ''}"


def _check_count(kind: str, name: str, value: object) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise DataError(f"{kind}: {name} is {value!r}; it must be a whole number, at least 1.")
