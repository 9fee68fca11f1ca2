"""A server's buckets of the tables: what messages about them carry, around ``Table``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from elasticflow.api import Optimizer
from elasticflow.embedding import TableSpec
from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array, Chunk, Layout
from elasticflow.step.rows import Keys, Rows, bounds, table_seed
from elasticflow_ps import native
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.table import Table

Tables = Mapping[int, Table]
"""By the number of the parcel that holds the buckets."""


def tables_of(
    layout: Layout, specs: Sequence[TableSpec], optimizer: Optimizer, parcels: Sequence[Parcel], seed: int
) -> dict[int, Table]:
    """A server's tables, without rows. optimizer: of those that have none of their own."""
    made: dict[int, Table] = {}
    for parcel in parcels:
        if parcel.table is not None:
            spec, name = specs[parcel.table], layout.tables[parcel.table].name
            values = partial(native.first_values, spec.initializer, table_seed(seed, name), dim=spec.dim)
            made[parcel.number] = Table(
                dim=spec.dim,
                kernel=kernel_for(spec.updated_by(optimizer)),
                first_values=values,
                first=parcel.buckets.start,
                stop=parcel.buckets.stop,
                evict_after_steps=spec.evict_after_steps,
                min_count=spec.min_count,
            )
    return made


def parse_keys(parcel: Parcel, frames: Sequence[memoryview]) -> Keys:
    """Keys that came for a table's parcel. Raises ProtocolError if they are not ascending, or not of it."""
    if not frames or any(frame.nbytes % 8 for frame in frames):
        raise ProtocolError(f"keys of {[frame.nbytes for frame in frames]} bytes")
    parts = [np.frombuffer(frame, np.uint64) for frame in frames]
    keys: Keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
    smallest, largest = bounds(parcel.buckets.start, parcel.buckets.stop)
    if len(keys) and not (smallest <= keys[0] and keys[-1] <= largest and bool((keys[1:] > keys[:-1]).all())):
        raise ProtocolError("keys that are not ascending, or of another server's buckets")
    return keys


def parse_rows(parcel: Parcel, dim: int, frames: Sequence[memoryview]) -> Rows:
    """Gradients that were pushed of a table's parcel. Raises ProtocolError if they are not that."""
    keys, parts = parse_keys(parcel, frames[::2]), frames[1::2]
    if [part.nbytes * 2 for part in parts] != [frame.nbytes * dim for frame in frames[::2]]:
        raise ProtocolError(f"gradients of {[part.nbytes for part in parts]} bytes, for {len(keys)} rows")
    values = [np.frombuffer(part, np.float32).reshape(-1, dim) for part in parts]
    return Rows(keys, values[0] if len(values) == 1 else np.concatenate(values))


def changed(
    tables: Tables, parcels: Sequence[Parcel], since_step: int, step: int
) -> Iterator[tuple[Chunk, Mapping[str, Array]]]:
    """By bucket, copies of the rows that were updated after a step, of all after step 0. step: now."""
    for number, table in tables.items():
        yield from zip(parcels[number].chunks, table.changed(since_step, step), strict=True)
