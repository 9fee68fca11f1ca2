"""Which keys have rows on this server, and since when: an index in C, or one in Python with the same answers.

A row has a *place*, a number from 0 on. A key whose place is below 0 is a candidate, one with -3 after three
steps: it has no row yet. Steps count from 1. What was last seen before step ``oldest`` is unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from elasticflow.step.rows import BUCKET_BITS, Keys, Values, bounds
from elasticflow_ps import native
from elasticflow_ps.growing import Growing
from elasticflow_ps.native import Places, RowIndex, Seen

MIN_HOMES = 1 << 10
MOST_ROWS = 1 << 31
"""Places are 32 bits long."""


class Index(ABC):
    """Keys of buckets ``first..stop``. Keys come ascending, each once.

    num_rows: all places are below this. num_bytes: of its memory, roughly where Python manages it.
    """

    @property
    @abstractmethod
    def num_rows(self) -> int: ...

    @property
    @abstractmethod
    def num_bytes(self) -> int: ...

    @abstractmethod
    def fits(self, keys: Keys) -> bool:
        """Whether keys are ascending, each once, and of these buckets: no others may be given to it."""

    @abstractmethod
    def find(self, keys: Keys, oldest: int) -> tuple[Places, int]:
        """Their places, -1 for those that have no row; and how many these are."""

    @abstractmethod
    def admit(self, keys: Keys, step: int, oldest: int, min_count: int) -> tuple[Places, Places]:
        """Counts a step for each key: its ``min_count``-th makes it one that has a row.

        Returns their places, -1 for those that have none, and of which keys rows begin now.
        """

    @abstractmethod
    def put(self, keys: Keys, seen: Seen, counts: Seen | None = None) -> Places:
        """Makes these keys such as have rows, whose places it returns; or, with counts, candidates."""

    @abstractmethod
    def listed(self, oldest: int) -> tuple[Keys, Places, Seen]:
        """All that was seen in step ``oldest`` or later, ascending by key."""

    @abstractmethod
    def forget(self, oldest: int, rows: Values) -> None:
        """Forgets what was not, and moves ``rows`` to the places that become free, so that these are few."""


def new_index(first: int, stop: int) -> Index:
    """An index without keys, in C if that is there."""
    return NativeIndex(first, stop) if native.rows_available else PlainIndex(first, stop)


class NativeIndex(Index):
    """See rows.c. At most four of five homes are taken."""

    def __init__(self, first: int, stop: int) -> None:
        self._range = (bounds(first, stop)[0], stop - first)
        self._allocate(0)

    def _allocate(self, num_keys: int) -> None:
        low, buckets = self._range
        # With four of five homes taken at most, that is room for half as many keys again.
        per_bucket = -(-max(MIN_HOMES, num_keys * 15 // 8) // buckets)
        self._homes = per_bucket * buckets
        self._most = self._homes * 4 // 5
        # After the last home there is as much room as they all could need, of which nothing is ever touched.
        self._memory = Growing((self._homes + self._most + 1) * native.ENTRY_BYTES)
        self._c = RowIndex(self._memory.array.ctypes.data, low, buckets, per_bucket, 0, 0)

    def _make_room(self, more: int) -> None:
        needed = self._c.used + more
        if self._c.rows + more > MOST_ROWS:
            raise OverflowError(
                f"a server can hold {MOST_ROWS:,} rows of a table: there must be more servers"
            )
        # It shrinks far later than it grows, so that it is not made anew by turns.
        if needed > self._most or (self._most > 4 * needed and self._homes > 2 * MIN_HOMES):
            old, memory = self._c, self._memory
            self._allocate(needed)
            native.rebuild_index(old, 1, self._c)
            del memory  # until here it is read

    @property
    def num_rows(self) -> int:
        return self._c.rows

    @property
    def num_bytes(self) -> int:
        return self._homes * native.ENTRY_BYTES

    def fits(self, keys: Keys) -> bool:
        return native.fit_index(self._c, keys)

    def find(self, keys: Keys, oldest: int) -> tuple[Places, int]:
        places = np.empty(len(keys), np.int64)
        return places, native.find_rows(self._c, keys, oldest, places)

    def admit(self, keys: Keys, step: int, oldest: int, min_count: int) -> tuple[Places, Places]:
        self._make_room(len(keys))
        places, fresh = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        number = native.admit_rows(self._c, keys, step, oldest, min_count, places, fresh)
        return places, fresh[:number]

    def put(self, keys: Keys, seen: Seen, counts: Seen | None = None) -> Places:
        self._make_room(len(keys))
        places = np.empty(len(keys), np.int64)
        native.put_rows(self._c, keys, seen, counts, places)
        return places

    def listed(self, oldest: int) -> tuple[Keys, Places, Seen]:
        most = self._c.used  # what is not written takes no memory
        keys, places, seen = np.empty(most, np.uint64), np.empty(most, np.int64), np.empty(most, np.uint32)
        number = native.list_rows(self._c, oldest, keys, places, seen)
        return keys[:number], places[:number], seen[:number]

    def forget(self, oldest: int, rows: Values) -> None:
        native.rebuild_index(self._c, oldest, self._c)
        native.close_gaps(self._c, rows)


class PlainIndex(Index):
    """A dict: key -> (place, step when last seen)."""

    ENTRY_BYTES = 250

    def __init__(self, first: int, stop: int) -> None:
        self._buckets = range(first, stop)
        self._entries: dict[int, tuple[int, int]] = {}
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def num_bytes(self) -> int:
        return len(self._entries) * self.ENTRY_BYTES

    def fits(self, keys: Keys) -> bool:
        ends = keys[[0, -1]] >> np.uint64(64 - BUCKET_BITS) if len(keys) else ()
        return bool(np.all(keys[1:] > keys[:-1])) and all(int(end) in self._buckets for end in ends)

    def _new_place(self) -> int:
        self._num_rows += 1
        return self._num_rows - 1

    def find(self, keys: Keys, oldest: int) -> tuple[Places, int]:
        known = (self._entries.get(key, (-1, 0)) for key in keys.tolist())
        places = np.array([place if seen >= oldest else -1 for place, seen in known], np.int64).clip(-1)
        return places, int(np.count_nonzero(places < 0))

    def admit(self, keys: Keys, step: int, oldest: int, min_count: int) -> tuple[Places, Places]:
        places, fresh = [], []
        for number, key in enumerate(keys.tolist()):
            place, seen = self._entries.get(key, (-1, 0))
            if seen < oldest or place < 0:
                count = 1 if seen < oldest else 1 - place
                if count < min_count:
                    place = -count
                else:
                    place = place if place >= 0 else self._new_place()
                    fresh.append(number)
            self._entries[key] = (place, step)
            places.append(max(place, -1))
        return np.array(places, np.int64), np.array(fresh, np.int64)

    def put(self, keys: Keys, seen: Seen, counts: Seen | None = None) -> Places:
        places = []
        for number, (key, step) in enumerate(zip(keys.tolist(), seen.tolist(), strict=True)):
            place, _ = self._entries.get(key, (-1, 0))
            if counts is not None:
                place = -int(counts[number])
            elif place < 0:
                place = self._new_place()
            self._entries[key] = (place, step)
            places.append(place)
        return np.array(places, np.int64)

    def listed(self, oldest: int) -> tuple[Keys, Places, Seen]:
        found = sorted((key, *entry) for key, entry in self._entries.items() if entry[1] >= oldest)
        keys, places, seen = zip(*found, strict=True) if found else ((), (), ())
        return np.array(keys, np.uint64), np.array(places, np.int64), np.array(seen, np.uint32)

    def forget(self, oldest: int, rows: Values) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry[1] >= oldest}
        taken = {place for place, _ in self._entries.values() if place >= 0}
        self._num_rows = len(taken)
        free = iter(sorted(set(range(self.num_rows)) - taken))
        for key, (place, seen) in self._entries.items():
            if place >= self.num_rows:
                to = next(free)
                rows[to] = rows[place]
                self._entries[key] = (to, seen)
