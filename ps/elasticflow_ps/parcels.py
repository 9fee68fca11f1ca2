"""Parcels: what of one server's chunks travels together in one message, 4 MB at most.

Inside a server, and on the wire, neighbouring chunks of one group are handled as one *span*: all
arithmetic on them is element by element, so the borders do not matter, and a small model costs one
array instead of eight. Storage, and norms, keep to the chunks.

A table's buckets on one server are a parcel as well, without spans: what travels of it depends on what is
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from elasticflow.step.layout import CHUNK_BYTES, Array, Chunk, Layout, Rule, Vector
from elasticflow.step.schedule import Kind


class Span:
    """Neighbouring chunks of one group: elements ``start..stop`` of it."""

    def __init__(self, layout: Layout, chunks: Sequence[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self.number, self.group = chunks[0].number, chunks[0].group
        self.start, self.stop = chunks[0].start, chunks[-1].stop
        self.rule: Rule = layout.groups[self.group].rule
        self.dtype = layout.groups[self.group].dtype
        self.num_bytes = sum(layout.chunk_bytes(chunk) for chunk in chunks)

    def __len__(self) -> int:
        return self.stop - self.start

    def view(self, vector: Vector) -> Array:
        """These elements of a whole vector."""
        return vector.groups[self.group][self.start : self.stop]

    def piece(self, array: Array, chunk: Chunk) -> Array:
        """One chunk's elements of an array of this span."""
        return array[chunk.start - self.start : chunk.stop - self.start]


class Parcel:
    """Some neighbouring chunks of one server.

    A push of a training step carries all spans, one of an evaluation only the report;
    a version carries all but the report. table: the number of the one of which it holds ``buckets``, which
    are all its chunks; None: of none. A push of a training step then carries keys and gradients of rows, and
    a version nothing.
    """

    def __init__(self, number: int, layout: Layout, chunks: Sequence[Chunk]) -> None:
        self.number, self.chunks = number, tuple(chunks)
        self.table = layout.table_of(chunks[0]) if chunks else None
        self.buckets = range(chunks[0].start, chunks[-1].stop) if self.table is not None else range(0)
        runs: list[list[Chunk]] = []
        for chunk in () if self.table is not None else chunks:
            last = runs[-1][-1] if runs else None
            if last and last.group == chunk.group and last.stop == chunk.start:
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        self.spans = tuple(Span(layout, run) for run in runs)

    @cached_property
    def _report(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.rule is Rule.REPORT)

    @cached_property
    def state(self) -> tuple[Span, ...]:
        """What a version carries."""
        return tuple(span for span in self.spans if span.rule is not Rule.REPORT)

    def copied(self, slots: Sequence[str]) -> tuple[Span, ...]:
        """What a copy of this parcel carries: each span for its value, then for each of its slots."""
        return tuple(span for span in self.state for _ in range(1 + (span.rule is Rule.UPDATE) * len(slots)))

    def pushed(self, kind: Kind) -> tuple[Span, ...]:
        """What a push carries in a tick of this kind."""
        return self.spans if kind is Kind.TRAIN else self._report

    def views(self, vector: Vector, kind: Kind) -> list[Array]:
        """What of ``vector`` a push carries, not copied."""
        return [span.view(vector) for span in self.pushed(kind)]


def parcels_of(layout: Layout, numbers: Sequence[int]) -> list[Parcel]:
    """The parcels of a server that holds the chunks with these numbers; never none."""
    parcels: list[list[Chunk]] = [[]]
    tables: dict[int, list[Chunk]] = {}
    filled = 0
    for number in numbers:
        chunk = layout.chunks[number]
        table = layout.table_of(chunk)
        if table is not None:
            tables.setdefault(table, []).append(chunk)
            continue
        size = layout.chunk_bytes(chunk)
        if parcels[-1] and filled + size > CHUNK_BYTES:
            parcels.append([])
            filled = 0
        parcels[-1].append(chunk)
        filled += size
    cut = [*parcels, *tables.values()] if parcels[-1] or not tables else list(tables.values())
    return [Parcel(number, layout, chunks) for number, chunks in enumerate(cut)]
