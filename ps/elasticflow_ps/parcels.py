"""Parcels: what of one server's chunks travels together in one message.

Of at most 4 MB, or an eighth of all that the server has, up to 8 MB: each costs as much Python, whatever its
length, and with few of them little can be done while others are on their way.

Inside a server, and on the wire, neighbouring chunks of one group are handled as one *span*: all
arithmetic on them is element by element, so the borders do not matter, and a small model costs one
array instead of eight. Storage, and norms, keep to the chunks.

A table's buckets on one server are a parcel as well, without spans: what travels of it depends on what is
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from elasticflow.step.layout import (
    CHUNK_BYTES,
    SHOWN,
    Array,
    Chunk,
    Layout,
    Rounds,
    Rule,
    Vector,
    is_pushed,
)
from elasticflow.step.schedule import Kind, Work
from elasticflow.training.freezing import Toggles, is_trained

EIGHTH, MOST_CHUNKS = 8, 2
"""A parcel is no longer than this part of a server's bytes, or than so many chunks."""


class Piece(NamedTuple):
    """What of a tensor lies in a chunk: elements ``start..stop`` of its group, and up to ``end`` padding.

    tensor: its number among the layout's parameters. chunk: that chunk's number.
    """

    tensor: int
    chunk: int
    start: int
    stop: int
    end: int


def pieces_of(layout: Layout, chunk: Chunk) -> list[Piece]:
    """Of a chunk of parameters, from its first element to its last."""
    entries = enumerate(layout.of_rule(Rule.UPDATE))
    regions = ((*layout.region(entry), number) for number, entry in entries)
    inside = sorted(region[1:] for region in regions if region[0] == chunk.group)
    ends = [start for start, _, _ in inside[1:]] + [chunk.stop]
    return [
        Piece(number, chunk.number, max(start, chunk.start), min(stop, chunk.stop), min(end, chunk.stop))
        for (start, stop, number), end in zip(inside, ends, strict=True)
        if start < chunk.stop and end > chunk.start
    ]


class Span:
    """Neighbouring chunks of one group: elements ``start..stop`` of it."""

    def __init__(self, layout: Layout, chunks: Sequence[Chunk]) -> None:
        self.chunks, self._layout = tuple(chunks), layout
        self.number, self.group = chunks[0].number, chunks[0].group
        self.start, self.stop = chunks[0].start, chunks[-1].stop
        self.rule: Rule = layout.groups[self.group].rule
        self.dtype, self.part = layout.groups[self.group].dtype, layout.groups[self.group].part
        self.num_bytes = sum(layout.chunk_bytes(chunk) for chunk in chunks)

    def __len__(self) -> int:
        return self.stop - self.start

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Of the tensors in it, chunk by chunk."""
        return tuple(piece for chunk in self.chunks for piece in pieces_of(self._layout, chunk))

    def view(self, vector: Vector) -> Array:
        """These elements of a whole vector."""
        return vector.groups[self.group][self.start : self.stop]

    def piece(self, array: Array, chunk: Chunk) -> Array:
        """One chunk's elements of an array of this span."""
        return array[chunk.start - self.start : chunk.stop - self.start]


class Parcel:
    """Some neighbouring chunks of one server.

    A push carries what is pushed in ticks of its kind, see ``Group.is_pushed``; a version all but the report.
    spans: what a push of a training step carries, where all is trained. toggles, rounds: those of all its
    parameters, or of its table. table: the number of the one of which it holds
    ``buckets``, which are all its chunks; None: of none. A push of a training step then carries keys and
    gradients of rows, and a version nothing.
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
        spans = [Span(layout, run) for run in runs]
        self._pushed = {kind: tuple(span for span in spans if is_pushed(span.rule, kind)) for kind in Kind}
        self.spans = self._pushed[Kind.TRAIN]
        self.state = tuple(span for span in spans if span.rule not in SHOWN)
        """What a version carries."""
        self.toggles = layout.groups[chunks[0].group].toggles if chunks else ()
        self.rounds = layout.groups[chunks[0].group].rounds if chunks else ()

    def is_changed(self, work: Work) -> bool:
        """Whether a tick makes something else of it."""
        if self.table is not None:
            return work.kind is Kind.TRAIN
        return any(span.rule not in SHOWN for span in self.pushed(work.kind, work.epoch, work.stage))

    def copied(self, *slots: Sequence[str]) -> tuple[Span, ...]:
        """What a copy of this parcel carries: each span for its value, then for each of its slots.

        slots: by the number of the optimizer.
        """
        return tuple(
            span
            for span in self.state
            for _ in range(1 + (len(slots[span.part]) if span.rule is Rule.UPDATE else 0))
        )

    def pushed(self, kind: Kind, epoch: int = 0, stage: int = 0) -> tuple[Span, ...]:
        """What a push carries in a tick of this kind, in this epoch, at this stage of a step."""
        if self.rounds and stage not in self.rounds:
            return ()
        if not self.toggles or kind is not Kind.TRAIN or is_trained(self.toggles, epoch):
            return self._pushed[kind]
        return ()

    def views(self, vector: Vector, kind: Kind, epoch: int = 0, stage: int = 0) -> list[Array]:
        """What of ``vector`` a push carries, not copied."""
        return [span.view(vector) for span in self.pushed(kind, epoch, stage)]


def parcels_of(layout: Layout, numbers: Sequence[int]) -> list[Parcel]:
    """The parcels of a server that holds the chunks with these numbers; never none."""
    total = sum(layout.chunk_bytes(layout.chunks[number]) for number in numbers)
    most = max(CHUNK_BYTES, min(total // EIGHTH, MOST_CHUNKS * CHUNK_BYTES))
    parcels: dict[tuple[Toggles, Rounds], list[list[Chunk]]] = {((), ()): [[]]}
    """What is trained in the same epochs and rounds, and all else but tables, batches and totals, of
    ``most`` bytes."""
    filled: dict[tuple[Toggles, Rounds], int] = {}
    apart: dict[int, list[Chunk]] = {}
    """By group: a table's, and what other ticks than those of the rest change."""
    for number in numbers:
        chunk = layout.chunks[number]
        group, size = layout.groups[chunk.group], layout.chunk_bytes(chunk)
        if group.rule in (Rule.ROWS, Rule.BATCH, Rule.TOTAL, Rule.KEPT):
            apart.setdefault(chunk.group, []).append(chunk)
            continue
        key = (group.toggles, group.rounds)
        alike = parcels.setdefault(key, [[]])
        goes_along = group.rule is Rule.REPORT  # with the measures, whatever they take
        if alike[-1] and filled.get(key, 0) + size > most and not goes_along:
            alike.append([])
            filled[key] = 0
        alike[-1].append(chunk)
        filled[key] = filled.get(key, 0) + size
    cut = [chunks for alike in parcels.values() for chunks in alike if chunks]
    return [Parcel(number, layout, chunks) for number, chunks in enumerate([*cut, *apart.values()] or [[]])]
