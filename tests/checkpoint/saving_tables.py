"""Embedding tables as the servers have them, and servers that write them: plainly, with dicts."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
from saving import SLOTS, Model, make_manifest, make_model, write_parts

from elasticflow import checkpoint
from elasticflow.embedding import Constant, TableSpec
from elasticflow.step.layout import Entry, Rule, spread
from elasticflow.step.rows import BUCKET_BITS, ids_of, keys_of

DENSE = (Entry("w", (40, 5), "float32", Rule.UPDATE), Entry("cost", (), "float64", Rule.REPORT))


def make_spec(dim=3, *, rows=None, min_count=1, evict_after_steps=0, **changes) -> TableSpec:
    fields = dict(rows=rows, dim=dim, initializer=Constant(), optimizer=None)
    return TableSpec(**fields | dict(min_count=min_count, evict_after_steps=evict_after_steps) | changes)


def entry_of(name: str, spec: TableSpec) -> Entry:
    return Entry(name, (spec.rows or 0, spec.dim), "float32", Rule.ROWS)


@dataclass
class Table:
    """rows: value and slots, one below the other, and ``seen``, by key. candidates: (count, seen) by key."""

    spec: TableSpec
    rows: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    candidates: dict[int, tuple[int, int]] = field(default_factory=dict)

    def update(self, ids, step: int, chance: np.random.Generator) -> None:
        """What a step does: rows that it has a gradient for become others, or candidates are counted."""
        self.forget(step)
        for key in keys_of(np.array(ids, np.int64)).tolist():
            count = self.candidates.pop(key, (0, 0))[0] + 1
            if key in self.rows or count >= self.spec.min_count:
                state = chance.standard_normal((1 + len(SLOTS), self.spec.dim)).astype(np.float32)
                self.rows[key] = (state, step)
            else:
                self.candidates[key] = (count, step)

    def forget(self, step: int) -> None:
        """What a step does not see any more."""
        if after := self.spec.evict_after_steps:
            self.rows = {key: row for key, row in self.rows.items() if row[1] >= step - after}
            self.candidates = {key: one for key, one in self.candidates.items() if one[1] >= step - after}

    def changed(self, bucket: int, since_step: int, step: int) -> dict[str, np.ndarray]:
        """A bucket's arrays after ``step``, of what was updated after ``since_step``."""
        self.forget(step + 1)

        def those(of, seen):
            shift = 64 - BUCKET_BITS
            return [k for k in sorted(of) if k >> shift == bucket and seen(of[k]) > since_step]

        keys = those(self.rows, lambda row: row[1])
        states = [self.rows[key][0] for key in keys]
        stacked = np.array(states, np.float32).reshape(len(keys), 1 + len(SLOTS), self.spec.dim)
        arrays = {
            "keys": np.array(keys, np.uint64),
            "seen": np.array([self.rows[k][1] for k in keys], np.uint32),
        }
        for number, name in enumerate(("value", *SLOTS)):
            arrays[name] = np.ascontiguousarray(stacked[:, number])
        if self.spec.min_count > 1:
            others = those(self.candidates, lambda one: one[1])
            arrays["candidates"] = np.array(others, np.uint64)
            arrays["counts"] = np.array([self.candidates[key][0] for key in others], np.uint32)
            arrays["candidates_seen"] = np.array([self.candidates[key][1] for key in others], np.uint32)
        return arrays

    def expected(self, name: str, step: int) -> dict[str, np.ndarray]:
        """What ``tensors`` must say of it."""
        buckets = [self.changed(bucket, -1, step) for bucket in range(1 << BUCKET_BITS)]
        arrays = {column: np.concatenate([bucket[column] for bucket in buckets]) for column in buckets[0]}
        found = {f"{name}.ids": ids_of(arrays.pop("keys")), f"{name}.rows": arrays.pop("value")}
        for slot in SLOTS:
            found[f"{name}.rows#{slot}"] = arrays.pop(slot)
        if "candidates" in arrays:
            arrays["candidates"] = ids_of(arrays["candidates"])
        return found | {f"{name}.{column}": array for column, array in arrays.items()}


class Servers:
    """A row of servers with some tables. chains: of each server, of the files that it has written so far."""

    def __init__(self, storage, tables: dict[str, Table], num_servers: int = 2, dense=DENSE) -> None:
        self.storage, self.tables, self.generation = storage, tables, 0
        self.model: Model = make_model((*dense, *(entry_of(name, t.spec) for name, t in tables.items())))
        self.start(num_servers, None)

    def start(self, num_servers: int, manifest: checkpoint.Manifest | None) -> None:
        """Another generation, from a checkpoint; None: from nothing."""
        self.generation += 1
        self.shares = spread(self.model.layout, num_servers)
        self.since = [manifest.step if manifest else 0] * num_servers
        self.chains = [checkpoint.chain_of(manifest, share) if manifest else () for share in self.shares]

    def buckets(self, server: int, since_step: int, step: int):
        """What a server has to write."""
        layout, tables = self.model.layout, list(self.tables.values())
        for chunk in (layout.chunks[number] for number in self.shares[server]):
            if (table := layout.table_of(chunk)) is not None:
                yield chunk, tables[table].changed(chunk.start, since_step, step)

    def write_rows(self, server: int, step: int, whole: bool | None = None) -> None:
        """The server's next row file. whole: None as is best."""
        chain = self.chains[server]
        delta = list(self.buckets(server, self.since[server], step))
        if whole is None:
            num_bytes = sum(array.nbytes for _, arrays in delta for array in arrays.values())
            whole = checkpoint.should_be_whole(chain, num_bytes)
        buckets = list(self.buckets(server, -1, step)) if whole else delta
        if buckets:
            name = checkpoint.row_file_name(step, self.generation, f"server-{server}")
            file = checkpoint.write_rows(self.storage, name, buckets, step=step, whole=whole)
            self.chains[server], self.since[server] = checkpoint.extended(chain, file), step

    def parts(self, step: int) -> tuple[checkpoint.Part, ...]:
        """Of what has been written."""
        parts = write_parts(self.storage, self.model, step, len(self.shares), self.generation)
        return tuple(
            msgspec.structs.replace(part, rows=chain) for part, chain in zip(parts, self.chains, strict=True)
        )

    def manifest(self, step: int, parts, **changes) -> checkpoint.Manifest:
        specs = tuple(table.spec for table in self.tables.values())
        return make_manifest(self.model, step, parts, **{"tables": specs} | changes)

    def save(self, step: int, whole: bool | None = None) -> checkpoint.Manifest:
        """A committed checkpoint."""
        for server in range(len(self.shares)):
            self.write_rows(server, step, whole)
        manifest = self.manifest(step, self.parts(step))
        checkpoint.commit(self.storage, manifest)
        return manifest
