"""Which rows of a server's tables a checkpoint has to write: those that are in none of its row files yet.

Rows are stored in a *chain* of row files, the oldest of which is whole. A checkpoint adds one with the rows
that were updated since, or begins another chain with a whole one, when the old one has become too long.

Two may be under way at once: a checkpoint that was ordered, and that of the end. Once the first is
committed, files that it does not name may go. So the second goes on from the same chain as the first, or
begins anew as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from elasticflow.checkpoint import RowFile, extended, should_be_whole, write_rows
from elasticflow.step.layout import Array, Chunk
from elasticflow.storage import Storage
from elasticflow_ps.store import Store
from elasticflow_ps.tables import changed


class Changes(NamedTuple):
    """What the row file of ``step`` is to hold. before: the files that it continues; none: it is whole."""

    step: int
    chunks: list[tuple[Chunk, Mapping[str, Array]]]
    before: tuple[RowFile, ...]

    def write(self, storage: Storage, name: str) -> tuple[RowFile, ...]:
        """Writes the file, and returns the chain that it ends. Raises CheckpointError."""
        file = write_rows(storage, name, self.chunks, step=self.step, whole=not self.before)
        return extended(self.before, file)


def changes(store: Store, step: int) -> Changes | None:
    """What is to be written of a store that is at ``step``; None if it has no tables."""
    if not store.tables:
        return None
    if store.chain and all(store.continued):
        chunks = list(changed(store.tables, store.parcels, store.chain[-1].step, step))
        num_bytes = sum(array.nbytes for _, arrays in chunks for array in arrays.values())
        if not should_be_whole(store.chain, num_bytes):
            return Changes(step, chunks, store.chain)
    return Changes(step, list(changed(store.tables, store.parcels, 0, step)), ())
