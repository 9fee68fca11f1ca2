"""A server's rows of one embedding table, in memory.

A row's numbers lie together, value before slots, and are updated where they are. Of the version before only
what the last update changed is kept: values alone, since nobody reads slots.

When memory of forgotten rows is used again has no influence on any bit: whether a row counts follows from the
step when it was last seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array, aligned_empty
from elasticflow.step.rows import Keys, Rows, Values, bounds, no_rows
from elasticflow_ps import native
from elasticflow_ps.growing import Growing
from elasticflow_ps.kernel import AnyKernel
from elasticflow_ps.native import Places
from elasticflow_ps.norms import squared_norm
from elasticflow_ps.row_index import new_index

BLOCK_BYTES = 8 << 10
"""Of values that are updated at a time: what one pass over them leaves behind is in cache for the next."""
MIN_ROWS_BYTES = 64 << 10

Number = TypeVar("Number", np.uint32, np.uint64, np.float32)

MOST_SEEN = 2**31 - 1
"""The last step, and the most that a candidate is counted."""


class Table:
    """Rows of the keys of buckets ``first..stop``, of ``dim`` float32 numbers, which ``kernel`` updates.

    first_values: of keys (k,), what their rows are before the first update, (k, dim). evict_after_steps,
    min_count: see ``elasticflow.Embedding``.
    version: of the rows as they are. Steps, and with them updates, count from 1.
    Methods raise ProtocolError for keys that are not ascending, or not of these buckets, before they change
    anything.
    """

    def __init__(
        self,
        *,
        dim: int,
        kernel: AnyKernel,
        first_values: Callable[[Keys], Values],
        first: int,
        stop: int,
        evict_after_steps: int = 0,
        min_count: int = 1,
    ) -> None:
        self.version = 0
        self._dim, self._kernel, self._first_values = dim, kernel, first_values
        self._buckets = range(first, stop)
        self._evict_after_steps, self._min_count = evict_after_steps, min_count
        self._index = new_index(first, stop)
        self._row_bytes = 4 * dim * (1 + len(kernel.slots))
        self._memory = Growing(MIN_ROWS_BYTES)
        self._look()
        self._forgot_at = 0
        self._undo = no_rows(dim)
        """Of the version before: values of the rows that are others now."""
        self._before: Values = np.empty((0, dim), np.float32)
        """Memory of the undo."""
        length = max(1, BLOCK_BYTES // (4 * dim))
        blocks = aligned_empty(length * self._row_bytes).view(np.float32)
        self._blocks: Values = blocks.reshape(-1, length, dim)
        """One of each, values and slots, where an update writes."""

    @property
    def num_rows(self) -> int:
        """In memory; among them may be some that count no more."""
        return self._index.num_rows

    @property
    def num_bytes(self) -> int:
        """Of all memory that it has allocated."""
        return self._memory.array.nbytes + self._index.num_bytes + self._before.nbytes + self._blocks.nbytes

    # --- steps -----------------------------------------------------------------------------------

    def read(self, keys: Keys, version: int, step: int, out: Values) -> None:
        """Writes the rows of ``version``, this one or the one before, to ``out``, (k, dim).

        step: of the slices that read; of the version before, the step that made this one.
        """
        assert self.version - 1 <= version <= self.version and out.shape == (len(keys), self._dim)
        self._check(keys)
        places, num_unknown = self._index.find(keys, self._oldest(step))
        if num_unknown:
            unknown = np.flatnonzero(places < 0)
            out[unknown] = self._first_values(keys[unknown])
        native.gather(self._rows, places, [out])
        if version < self.version and len(self._undo.keys):
            native.gather(self._undo.values[:, None], _among(self._undo.keys, keys), [out])

    def apply(self, rows: Rows, *, lr: float, update: int, scale: float, step: int = 0) -> bool:
        """Makes the next version from the sum over all slices of step ``update``, see ``Kernel.apply``.

        Whether it holds numbers alone.

        step: where that is another number, since a step makes several updates.
        """
        step = step or update
        keys, grads = rows
        assert grads.shape == (len(keys), self._dim) and grads.dtype == np.float32
        self._check(keys)
        self._forget(step)
        self._make_room(len(keys))
        places, fresh = self._index.admit(keys, step, self._oldest(step), self._min_count)
        if len(fresh):
            self._begin(keys[fresh], places[fresh])
        if self._min_count > 1:
            admitted = places >= 0
            keys, grads, places = keys[admitted], grads[admitted], places[admitted]
        finite = self._update(places, grads, lr, update, scale)
        self._undo = Rows(np.array(keys), self._before[: len(keys)])
        self.version += 1
        return finite

    def carry(self) -> None:
        """Makes the next version the same as this one."""
        self._undo = no_rows(self._dim)
        self.version += 1

    def squared_norms(self, rows: Rows) -> list[float]:
        """Of the gradient, for each bucket, see ``optimizers.squared_norm``."""
        self._check(rows.keys)
        return [
            squared_norm(rows.values[part].reshape(-1)) if part.start < part.stop else 0.0
            for part in self._parts(rows.keys)
        ]

    def _check(self, keys: Keys) -> None:
        assert keys.dtype == np.uint64 and keys.flags.c_contiguous
        if not self._index.fits(keys):
            first, stop = self._buckets.start, self._buckets.stop
            raise ProtocolError(
                f"keys that are not ascending, or not all in this server's buckets, {first}..{stop - 1}"
            )

    def _oldest(self, step: int) -> int:
        """Rows that were last seen before it are unknown in this step."""
        return max(1, step - self._evict_after_steps) if self._evict_after_steps else 1

    def _parts(self, keys: Keys) -> list[slice]:
        """Of ascending keys, those of each bucket."""
        limits = np.array([bounds(bucket, bucket + 1)[0] for bucket in self._buckets], np.uint64)
        starts = [*np.searchsorted(keys, limits).tolist(), len(keys)]
        return [slice(*ends) for ends in zip(starts, starts[1:], strict=False)]

    def _begin(self, keys: Keys, places: Places) -> None:
        values = self._first_values(keys)
        slots = [np.full_like(values, self._kernel.initial(name)) for name in self._kernel.slots]
        native.scatter(self._rows, places, [values, *slots])

    def _update(self, places: Places, grads: Values, lr: float, update: int, scale: float) -> bool:
        if len(self._before) < len(places):
            self._before = np.empty((len(places) * 3 // 2, self._dim), np.float32)
        before, grads = self._before[: len(places)], np.ascontiguousarray(grads)
        kernel, rule = self._kernel, self._kernel.rule_at(update)
        if rule is not None and not kernel.averages and native.rows_available:
            numbers = kernel.numbers(lr, update, scale)
            return native.update_rows(rule, self._rows, places, grads, before, self._blocks, numbers)
        new = np.empty_like(before)
        slots = [np.empty_like(before) for _ in kernel.slots]
        native.gather(self._rows, places, [before, *slots])
        flat = {name: slot.reshape(-1) for name, slot in zip(kernel.slots, slots, strict=True)}
        finite = kernel.apply(
            before.reshape(-1),
            grads.reshape(-1),
            flat,
            new.reshape(-1),
            flat,
            lr=lr,
            update=update,
            grad_scale=scale,
        )
        native.scatter(self._rows, places, [new, *slots])
        return finite

    # --- memory ----------------------------------------------------------------------------------

    def _look(self) -> None:
        whole = len(self._memory.array) // self._row_bytes
        rows = self._memory.array[: whole * self._row_bytes].view(np.float32)
        self._rows: Values = rows.reshape(whole, 1 + len(self._kernel.slots), self._dim)

    def _resize(self, num_rows: int) -> None:
        del self._rows
        try:
            self._memory.resize(max(MIN_ROWS_BYTES, num_rows * self._row_bytes))
        finally:
            self._look()

    def _make_room(self, more: int) -> None:
        needed = self._index.num_rows + more
        if needed > len(self._rows):
            self._resize(needed * 3 // 2)

    def _forget(self, step: int) -> None:
        """Once in ``evict_after_steps`` steps: so what is in memory was seen in the last twice as many."""
        if not self._evict_after_steps or step < self._forgot_at + self._evict_after_steps:
            return
        self._forgot_at = step
        self._index.forget(self._oldest(step), self._rows)
        if len(self._rows) > 4 * self._index.num_rows:
            self._resize(self._index.num_rows * 3 // 2)

    # --- checkpoints -----------------------------------------------------------------------------

    def changed(self, since_step: int, step: int) -> list[dict[str, Array]]:
        """By bucket, copies of all that has been updated after ``since_step``, as it is after ``step``.

        since_step: 0 for all. keys: (k,), ascending. value, and the slots by name: (k, dim). seen: (k,), the
        steps of their last updates. With a min_count also candidates: (c,), ascending, counts: (c,), of the
        steps with a gradient for each, and candidates_seen: (c,). What nobody can read any more is left out.
        """
        oldest = max(since_step + 1, self._oldest(step + 1))
        keys, places, seen = self._index.listed(oldest)
        is_row = places >= 0
        waiting, counts, waiting_seen = keys[~is_row], -places[~is_row], seen[~is_row]
        keys, places, seen = keys[is_row], places[is_row], seen[is_row]
        buckets = []
        for part, others in zip(self._parts(keys), self._parts(waiting), strict=True):
            pieces = [np.empty((part.stop - part.start, self._dim), np.float32) for _ in self._names]
            native.gather(self._rows, places[part], pieces)
            arrays: dict[str, Array] = {"keys": keys[part], "seen": seen[part]}
            arrays.update(zip(self._names, pieces, strict=True))
            if self._min_count > 1:
                arrays["candidates"] = waiting[others]
                arrays["counts"] = counts[others].astype(np.uint32)
                arrays["candidates_seen"] = waiting_seen[others]
            buckets.append(arrays)
        return buckets

    @property
    def _names(self) -> tuple[str, ...]:
        return "value", *self._kernel.slots

    def restore(self, bucket: int, arrays: dict[str, Array]) -> None:
        """Takes what ``changed`` gave for a bucket. In the order of writing: what comes later replaces."""
        keys = _of(arrays["keys"], np.uint64)
        self._check(keys)
        self._make_room(len(keys))
        places = self._index.put(keys, _positive("seen", arrays["seen"]))
        native.scatter(self._rows, places, [_of(arrays[name], np.float32) for name in self._names])
        if "candidates" in arrays:
            keys = _of(arrays["candidates"], np.uint64)
            self._check(keys)
            seen, counts = (_positive(name, arrays[name]) for name in ("candidates_seen", "counts"))
            self._index.put(keys, seen, counts)

    def settle(self, version: int) -> None:
        """Makes this the version of what was restored; there is none before."""
        self._undo = no_rows(self._dim)
        self.version = version


def _of(array: Array, dtype: type[Number]) -> npt.NDArray[Number]:
    return np.ascontiguousarray(array).astype(dtype, copy=False)


def _positive(name: str, array: Array) -> npt.NDArray[np.uint32]:
    """Raises ProtocolError for a step or a count that cannot be: the index takes a 0 for no entry."""
    numbers = _of(array, np.uint32)
    if len(numbers) and not 1 <= int(numbers.min()) <= int(numbers.max()) <= MOST_SEEN:
        raise ProtocolError(f"{name}: numbers from {numbers.min()} to {numbers.max()}, not 1 to {MOST_SEEN}")
    return numbers


def _among(known: Keys, keys: Keys) -> Places:
    """Where each key is among the known ones, -1 for those that are not; both ascending."""
    places = np.searchsorted(known, keys).astype(np.int64)
    places[places == len(known)] = 0
    places[known[places] != keys] = -1
    return places
