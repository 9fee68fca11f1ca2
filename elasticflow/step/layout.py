"""How a model's tensors lie in flat vectors, and how those are cut into chunks.

Tensors with the same rule, dtype and optimizer, trained in the same epochs and rounds, lie one after the
other in one flat vector, a *group*, each padded to 64 bytes so that its alignment, and with it the bits that
BLAS computes, is the same in every process. A group is cut into *chunks*: fixed ranges that are the unit of
placement, transfer, update and storage. The cut depends on the model alone, never on how many servers
there are.

An embedding table is a group as well, of which no process holds a vector; its chunks are its buckets.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.step.rows import NUM_BUCKETS, Rows, no_rows
from elasticflow.step.schedule import Kind
from elasticflow.training.freezing import Toggles, is_trained

Array = npt.NDArray[np.generic]
Rounds: TypeAlias = tuple[int, ...]

ALIGN_BYTES = 64
# Messages of 0.25 MB, and of 50 MB, were half as fast as those of 4 MB.
CHUNK_BYTES = 4 << 20
MOST_ENTRIES, MOST_CHUNKS = 1 << 17, 1 << 20
"""Of a layout: terabytes. Who asks for more, as a forged file may, is told so before it is made."""
MOST_ROUNDS = 64
"""Of a step."""
KINDS = "biufc"
"""Of NumPy's types, those that tensors have: numbers."""
MIN_CHUNKS = 8
"""A small model is cut this fine, so that up to eight servers have something to hold."""


class Rule(str, Enum):
    """What becomes of a region of the state when all slices of a step are in."""

    UPDATE = "update"
    """A parameter: slices send gradients, the optimizer makes the next value from their sum."""
    MEAN = "mean"
    """A floating buffer (BatchNorm's statistics): the weighted mean of the slices' values."""
    FIRST = "first"
    """A buffer of whole numbers (a counter): the value of the first slice."""
    ROWS = "rows"
    """An embedding table: slices send gradients of the rows they looked up; no vector holds any of it."""
    MEASURE = "measure"
    """Sums of which metrics are made: slices of an evaluation send them, those of a step do not."""
    BATCH = "batch"
    """What slices make of their records for the others to see: all of it, from the tick that encodes."""
    TOTAL = "total"
    """What a loop of the program's own asks for by ``all_reduce``: the sum of the slices' values."""
    KEPT = "kept"
    """What such a loop keeps from step to step, and changes itself: the value that the first slice tells."""
    REPORT = "report"
    """Cost and metrics: the weighted mean of the slices' values; shown to people, not kept."""


SHOWN = (Rule.MEASURE, Rule.REPORT)
"""What is for people: no part of the model. Server 0, which leads, has it all."""
PASSING = (*SHOWN, Rule.BATCH, Rule.TOTAL)
"""What is of one step: no part of the model, and of no checkpoint."""


def is_pushed(rule: Rule, kind: Kind) -> bool:
    """Whether slices of a tick of this kind send regions of this rule."""
    if kind is Kind.TRAIN:
        return rule not in (Rule.MEASURE, Rule.BATCH, Rule.KEPT)
    if kind is Kind.EVALUATE:
        return rule in SHOWN
    return rule is (Rule.BATCH if kind is Kind.ENCODE else Rule.KEPT)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor of the model. ``dtype`` is NumPy's name for it, such as ``float32``.

    A table's shape is (rows, dim), rows 0 if any id may come. part: of a parameter, the number of the
    optimizer that updates it. toggles: of a parameter or table, see ``training.freezing``. rounds: of a
    parameter or a total, those in which slices send it, see ``Schedule``; (): there is but one, or in all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: Rule
    part: int = 0
    toggles: Toggles = ()
    rounds: Rounds = ()

    @property
    def size(self) -> int:
        """Number of elements; of a table, of one row."""
        return self.shape[1] if self.rule is Rule.ROWS else math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


class Frozen(msgspec.Struct, frozen=True):
    """A parameter that is not trained: it is in no vector, and no message carries it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


class Group(msgspec.Struct, frozen=True):
    """One flat vector: ``size`` elements of ``dtype``, padding included; or a table of ``size`` buckets."""

    rule: Rule
    dtype: str
    size: int
    part: int = 0
    toggles: Toggles = ()
    rounds: Rounds = ()

    def is_pushed(self, kind: Kind, epoch: int, stage: int = 0) -> bool:
        """Whether slices of a tick of this kind, in this epoch, at this stage, send what is in it."""
        frozen = self.rule is Rule.UPDATE and not is_trained(self.toggles, epoch)
        others = self.rounds and stage not in self.rounds
        return is_pushed(self.rule, kind) and not frozen and not others

    @property
    def num_bytes(self) -> int:
        """In a vector."""
        return 0 if self.rule is Rule.ROWS else self.size * np.dtype(self.dtype).itemsize


class Chunk(msgspec.Struct, frozen=True):
    """Elements ``start..stop`` of group number ``group``, or a bucket of it, if it is a table.

    ``number`` counts through all groups.
    """

    number: int
    group: int
    start: int
    stop: int


class Layout:
    """Where each tensor lies. A pure function of the list of entries.

    entries: in the order in which they lie; names are unique.
    groups, chunks: see above. places: (group number, first element) by entry name. tables: their entries.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: tuple[Entry, ...] = tuple(entries)
        if len(self.entries) > MOST_ENTRIES:
            raise ValueError(f"{len(self.entries):,} tensors; there can be at most {MOST_ENTRIES:,}")
        sizes: dict[tuple[Rule, str, str, int, Toggles, Rounds], int] = {}
        numbers: dict[tuple[Rule, str, str, int, Toggles, Rounds], int] = {}
        self.places: dict[str, tuple[int, int]] = {}
        for entry in self.entries:
            _check_entry(entry)
            own = entry.name if entry.rule is Rule.ROWS else ""
            key = (entry.rule, entry.dtype, own, entry.part, entry.toggles, entry.rounds)
            start = sizes.setdefault(key, 0)
            if entry.name in self.places:
                raise ValueError(f"two tensors are named {entry.name!r}")
            self.places[entry.name] = (numbers.setdefault(key, len(numbers)), start)
            per_line = ALIGN_BYTES // np.dtype(entry.dtype).itemsize
            padded = max(1, math.ceil(entry.size / per_line)) * per_line
            sizes[key] = start + (NUM_BUCKETS if entry.rule is Rule.ROWS else padded)
        self.groups: tuple[Group, ...] = tuple(
            Group(rule, dtype, size, part, toggles, rounds)
            for (rule, dtype, _, part, toggles, rounds), size in sizes.items()
        )
        self.tables: tuple[Entry, ...] = tuple(self.of_rule(Rule.ROWS))
        self.chunks: tuple[Chunk, ...] = tuple(self._cut())

    def _cut(self) -> Iterable[Chunk]:
        number = 0
        for group_number, group in enumerate(self.groups):
            itemsize = np.dtype(group.dtype).itemsize
            per_line = ALIGN_BYTES // itemsize
            length = CHUNK_BYTES // itemsize
            if group.rule is Rule.ROWS:
                length = 1
            elif group.rule is Rule.UPDATE:  # other groups are small, and are better left whole
                fine = math.ceil(group.size / MIN_CHUNKS / per_line) * per_line
                length = min(length, fine)
            if number + group.size // length > MOST_CHUNKS:
                raise ValueError(
                    f"a model of {self.num_bytes:,} bytes; it can have at most {MOST_CHUNKS:,} chunks of "
                    f"{CHUNK_BYTES:,}"
                )
            for start in range(0, group.size, length):
                yield Chunk(number, group_number, start, min(start + length, group.size))
                number += 1

    @cached_property
    def signature(self) -> str:
        """SHA-256 over names, shapes, dtypes and rules: two models fit each other if these are equal."""
        return hashlib.sha256(msgspec.json.encode(self.entries)).hexdigest()

    def region(self, entry: Entry) -> tuple[int, int, int]:
        """Group number, first element, and the first that is not its any more."""
        group, start = self.places[entry.name]
        return group, start, start + entry.size

    def chunk_bytes(self, chunk: Chunk) -> int:
        """In a vector: 0 for a bucket of a table."""
        if self.groups[chunk.group].rule is Rule.ROWS:
            return 0
        return (chunk.stop - chunk.start) * np.dtype(self.groups[chunk.group].dtype).itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of one whole state vector, padding included."""
        return sum(group.num_bytes for group in self.groups)

    def table_of(self, chunk: Chunk) -> int | None:
        """The number of the table, among ``tables``, of which a chunk is a bucket; None if of none."""
        return self._tables.get(chunk.group)

    @cached_property
    def _tables(self) -> dict[int, int]:
        return {self.places[entry.name][0]: number for number, entry in enumerate(self.tables)}

    def of_rule(self, rule: Rule) -> list[Entry]:
        return [entry for entry in self.entries if entry.rule is rule]


def _check_entry(entry: Entry) -> None:
    """Raises ValueError unless there can be such a tensor. (A million of its kind: it has to be quick.)"""
    if entry.dtype not in _known:
        dtype = np.dtype(entry.dtype) if len(entry.dtype) <= 16 else None
        if dtype is None or dtype.kind not in KINDS or dtype.name != entry.dtype:
            raise ValueError(f"{entry.name!r} is of type {entry.dtype!r}, which is none of numbers")
        _known.add(entry.dtype)
    if entry.part < 0 or (entry.part and entry.rule is not Rule.UPDATE):
        raise ValueError(f"{entry.name!r} is updated by optimizer {entry.part}")
    if entry.toggles and (
        entry.rule not in (Rule.UPDATE, Rule.ROWS)
        or entry.toggles[0] < 0
        or any(later <= toggle for toggle, later in pairwise(entry.toggles))
    ):
        raise ValueError(f"{entry.name!r} is trained, or not, by {entry.toggles}")
    if entry.rounds and (
        entry.rule not in (Rule.UPDATE, Rule.TOTAL)
        or not 0 <= entry.rounds[0] <= entry.rounds[-1] < MOST_ROUNDS
        or any(later <= earlier for earlier, later in pairwise(entry.rounds))
    ):
        raise ValueError(f"{entry.name!r} is of the rounds {entry.rounds}")
    if any(length < 0 for length in entry.shape) or (entry.rule is Rule.ROWS and len(entry.shape) != 2):
        raise ValueError(f"{entry.name!r} has the shape {entry.shape}")


_known: set[str] = set()


def rounds_of(entries: Iterable[Entry]) -> int:
    """Rounds of a step of such a model: see ``Schedule``."""
    return max((1 + entry.rounds[-1] for entry in entries if entry.rounds), default=0)


def stages_of(entries: Sequence[Entry]) -> int:
    """Ticks of a step of such a model: see ``Schedule``."""
    if rounds := rounds_of(entries):
        return rounds + any(entry.rule is Rule.KEPT for entry in entries)
    return 1 + any(entry.rule is Rule.BATCH for entry in entries)


def spread(layout: Layout, num_servers: int) -> list[list[int]]:
    """Chunk numbers for each server: runs of neighbours, as even in bytes as whole chunks allow.

    Of each table every server gets a run of buckets, as even as can be.
    The report chunk goes to server 0, which leads (it answers with the plan in force).
    Servers beyond the number of chunks get none.
    """
    rule = {number: group.rule for number, group in enumerate(layout.groups)}
    dense = [c for c in layout.chunks if rule[c.group] not in (*SHOWN, Rule.ROWS)]
    total = sum(layout.chunk_bytes(c) for c in dense)
    shares: list[list[int]] = [[] for _ in range(num_servers)]
    before = 0
    for chunk in dense:
        middle = before + layout.chunk_bytes(chunk) / 2
        shares[min(num_servers - 1, int(middle * num_servers / total))].append(chunk.number)
        before += layout.chunk_bytes(chunk)
    for chunk in layout.chunks:
        if rule[chunk.group] is Rule.ROWS:
            shares[chunk.start * num_servers // NUM_BUCKETS].append(chunk.number)
    shares[0].extend(c.number for c in layout.chunks if rule[c.group] in SHOWN)
    return shares


def aligned_empty(num_bytes: int) -> npt.NDArray[np.uint8]:
    """An uninitialised array of bytes whose address is a multiple of ``ALIGN_BYTES``."""
    raw = np.empty(num_bytes + ALIGN_BYTES, np.uint8)
    skip = -raw.ctypes.data % ALIGN_BYTES
    return raw[skip : skip + num_bytes]


class Vector:
    """One whole state (or gradient) vector: one aligned flat array per group.

    ``groups[i]`` has ``layout.groups[i].size`` elements, and none for a table. rows: of a gradient, by table.
    memory: ``layout.num_bytes`` bytes, aligned, where groups lie one after the other, as they are; without it
    they are zeros. own_pages: whether nothing else is in the pages of that memory.
    """

    def __init__(
        self, layout: Layout, memory: npt.NDArray[np.uint8] | None = None, *, own_pages: bool = False
    ) -> None:
        self.layout, self.own_pages = layout, own_pages
        if memory is None:
            memory = aligned_empty(layout.num_bytes)
            memory.fill(0)
        self.groups: list[Array] = []
        for group in layout.groups:
            self.groups.append(memory[: group.num_bytes].view(group.dtype))
            memory = memory[group.num_bytes :]
        self.rows: list[Rows] = [no_rows(entry.shape[1]) for entry in layout.tables]

    def tensors(self, entries: Sequence[Entry]) -> list[Array]:
        """Views of several tensors, each in its own shape."""
        views = []
        for entry in entries:
            group, start = self.layout.places[entry.name]
            views.append(self.groups[group][start : start + entry.size].reshape(entry.shape))
        return views

    def chunk(self, chunk: Chunk) -> Array:
        """The elements of one chunk, a view."""
        return self.groups[chunk.group][chunk.start : chunk.stop]


def paged_vector(layout: Layout) -> Vector:
    """Zeros, in pages of its own."""
    pages = mmap.mmap(-1, max(1, layout.num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return Vector(layout, np.frombuffer(pages, np.uint8), own_pages=True)
