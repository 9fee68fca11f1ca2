"""What the arrays of a parameter server take at most: a sum, made before there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elasticflow.api import Optimizer
from elasticflow.embedding import TableSpec
from elasticflow.step.layout import Layout, Rule
from elasticflow.step.rows import NUM_BUCKETS
from elasticflow_ps.optimizers import kernel_for

VERSIONS = 3
"""The newest, the one before, since servers may differ by one, and the one that is being made."""
COPIES = 2
"""Of a place's snapshots: the one that is safe, and the one that is becoming so."""


ROW_BYTES = 30
"""Of a row, besides its numbers: in the index 16, of which there may be room for 15 rows where 8 are."""


class MemoryNeed(NamedTuple):
    """Bytes by what they are for."""

    parameters: int
    slots: int
    gradients: int
    snapshots: int
    """Its own, and those that it keeps for another server."""
    checkpoint: int
    """What is written of it, while it is written: rows are copied, all of them where a row file is whole."""
    rows: int
    """Of tables that say how many rows they can have, with slots: if all of these are trained."""

    @property
    def total(self) -> int:
        return sum(self)

    @property
    def certain(self) -> MemoryNeed:
        """What every run takes, after a few steps; the rest depends on what happens at once."""
        return MemoryNeed(self.parameters, self.slots, 0, 0, 0, 0)


def needs(
    layout: Layout,
    optimizer: Optimizer,
    row: Sequence[Sequence[int]],
    *,
    others: Sequence[Optimizer] = (),
    tables: Sequence[TableSpec] = (),
    snapshots: bool,
    num_workers: int,
    num_slices: int,
    packs_versions: bool = False,
) -> list[MemoryNeed]:
    """What each server needs at most. row: by place, the numbers of its chunks; none: it stands by.

    packs_versions: whether of each version there is one of half the size as well, to be sent.
    others: optimizers of groups of parameters.
    A gradient waits for its sibling in the tree over the slices: so there are half as many as slices at once,
    at most, and one for each worker as they are planned.
    """
    num_slots = [len(kernel_for(each).slots) for each in (optimizer, *others)]
    waiting = min(num_workers, max(1, num_slices // 2))
    copies = COPIES if snapshots and len(row) > 1 else 0
    held = [_bytes_of(layout, chunks) for chunks in row]
    slots = [_slot_bytes(layout, chunks, num_slots) for chunks in row]
    whole = [state + mine for (_, state, _), mine in zip(held, slots, strict=True)]
    rows = [sum(_rows_bytes(layout, chunk, tables, optimizer) for chunk in chunks) for chunks in row]
    return [
        MemoryNeed(
            parameters=VERSIONS * state + packs_versions * VERSIONS * updated // 2,
            slots=slots[place],
            gradients=waiting * pushed,
            snapshots=copies * (whole[place] + whole[place - 1]),  # each keeps for the one before it
            checkpoint=whole[place] + rows[place],
            rows=rows[place],
        )
        for place, (pushed, state, updated) in enumerate(held)
    ]


def _rows_bytes(layout: Layout, number: int, tables: Sequence[TableSpec], optimizer: Optimizer) -> int:
    """Of one chunk, if it is a bucket of a table with so many rows."""
    table = layout.table_of(layout.chunks[number])
    if table is None or tables[table].rows is None:
        return 0
    spec = tables[table]
    arrays = 1 + len(kernel_for(spec.updated_by(optimizer)).slots)
    return (spec.rows or 0) * (spec.dim * 4 * arrays + ROW_BYTES) // NUM_BUCKETS


def _slot_bytes(layout: Layout, chunks: Sequence[int], num_slots: Sequence[int]) -> int:
    """num_slots: by the number of the optimizer."""
    groups = [(layout.chunks[number], layout.groups[layout.chunks[number].group]) for number in chunks]
    updated = ((layout.chunk_bytes(chunk), group) for chunk, group in groups if group.rule is Rule.UPDATE)
    return sum(num_bytes * num_slots[group.part] for num_bytes, group in updated)


def _bytes_of(layout: Layout, chunks: Sequence[int]) -> tuple[int, int, int]:
    """Of what is pushed of these chunks, of that what a version carries, and of that the parameters."""
    sizes = dict.fromkeys(Rule, 0)
    for number in chunks:
        chunk = layout.chunks[number]
        sizes[layout.groups[chunk.group].rule] += layout.chunk_bytes(chunk)
    pushed = sum(sizes.values())
    return pushed, pushed - sizes[Rule.REPORT], sizes[Rule.UPDATE]
