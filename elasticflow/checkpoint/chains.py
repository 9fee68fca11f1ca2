"""Chains of row files: in which files the rows of an embedding table are.

A table is too large to be written anew for each checkpoint. A server's *row file* is *whole*, with all rows
of its buckets, or a *delta*, with those that were updated since its row file before. A bucket's rows are
those of its *chain*: a whole file and the deltas after it; of what is said of a key, the last word counts.
Checkpoints share row files, so these lie in a folder of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from elasticflow.checkpoint.names import ROWS, VALUE, step_of_row_file
from elasticflow.embedding import TableSpec
from elasticflow.step.layout import Layout

KEYS, SEEN = "keys", "seen"
CANDIDATES, COUNTS, CANDIDATES_SEEN = "candidates", "counts", "candidates_seen"
OF_CANDIDATES = (CANDIDATES, COUNTS, CANDIDATES_SEEN)

MOST_FILES = 8
"""Of a chain. Each is one more to read when a run goes on, and one more that may be damaged."""


class SavedRows(msgspec.Struct, frozen=True):
    """Where in its file an array begins, in bytes, the SHA-256 (hex) of its bytes, and what it is."""

    start: int
    sha256: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class RowFile(msgspec.Struct, frozen=True):
    """A row file, as far as it is in the chains of some buckets.

    file: its name below ``rows``. num_bytes: of the whole file. step: after which its rows were so.
    chunks: by the number of a bucket's chunk, each array by its name: ``keys`` (k,), ``value`` (k, dim), the
    slots (k, dim), ``seen`` (k,), the step of each row's last update; and of a table with a minimum count
    ``candidates``, ``counts`` and ``candidates_seen``, all (c,). Keys are ascending.
    frame: the SHA-256 of the bytes that belong to no array; "" if buckets of the file are not named here.
    """

    file: str
    num_bytes: int
    step: int
    whole: bool
    chunks: dict[int, dict[str, SavedRows]]
    frame: str = ""

    @property
    def path(self) -> str:
        """Where it lies in its storage."""
        return f"{ROWS}/{self.file}"

    @property
    def array_bytes(self) -> int:
        """Of the arrays that are named."""
        return sum(array.num_bytes for named in self.chunks.values() for array in named.values())

    def of(self, numbers: Container[int]) -> RowFile:
        """The same for these chunks alone."""
        chunks = {number: named for number, named in self.chunks.items() if number in numbers}
        if len(chunks) == len(self.chunks):
            return self
        return msgspec.structs.replace(self, chunks=chunks, frame="")


class TableSize(NamedTuple):
    """How large a table is in a checkpoint's row files, as the manifest tells without them.

    most_rows: the number of rows, or more if rows are in several files. is_exact: whether none is.
    """

    most_rows: int
    is_exact: bool
    num_bytes: int


def size_of(chain: Sequence[RowFile]) -> TableSize:
    """Of the rows in a chain."""
    rows = sum(named[KEYS].shape[0] for file in chain for named in file.chunks.values())
    return TableSize(rows, all(file.whole for file in chain), sum(file.array_bytes for file in chain))


def joined(chains: Iterable[Iterable[RowFile]], numbers: Container[int]) -> tuple[RowFile, ...]:
    """The chain of some chunks, oldest file first, out of those of several servers."""
    found: dict[str, RowFile] = {}
    for chain in chains:
        for file in chain:
            if (mine := file.of(numbers)).chunks:
                other = found.get(file.file)
                found[file.file] = mine if other is None else _both(other, mine)
    return tuple(sorted(found.values(), key=lambda file: (file.step, file.file)))


def _both(left: RowFile, right: RowFile) -> RowFile:
    return msgspec.structs.replace(left, chunks={**left.chunks, **right.chunks}, frame="")


def by_chunk(chains: Iterable[Iterable[RowFile]]) -> dict[int, list[RowFile]]:
    """The files of each bucket's chain by chunk number, oldest first."""
    found: dict[int, list[RowFile]] = {}
    for chain in chains:
        for file in chain:
            for number in file.chunks:
                found.setdefault(number, []).append(file)
    return found


def extended(chain: tuple[RowFile, ...], file: RowFile) -> tuple[RowFile, ...]:
    """A server's chain once it has written another file; one in which nothing is needs no place in it."""
    if not file.chunks:
        return chain
    return (file,) if file.whole else (*chain, file)


def should_be_whole(chain: Sequence[RowFile], delta_bytes: int) -> bool:
    """Whether the next row file after ``chain`` is to be whole, rather than a delta of ``delta_bytes``.

    It is if the deltas together would be larger than the whole file that they change, or if the chain would
    be longer than ``MOST_FILES``. What was taken over from several servers at one step counts once.
    """
    deltas = [file for file in chain if not file.whole]
    whole_bytes = sum(file.array_bytes for file in chain if file.whole)
    deltas_bytes = sum(file.array_bytes for file in deltas) + delta_bytes
    length = 2 + len({file.step for file in deltas})
    return not chain or length > MOST_FILES or deltas_bytes > whole_bytes


def check_rows(arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Raises ValueError unless (shape, dtype) by name are those of one bucket's arrays, see ``RowFile``."""
    missing = {KEYS, VALUE, SEEN} - arrays.keys()
    if missing or len(arrays.keys() & set(OF_CANDIDATES)) not in (0, len(OF_CANDIDATES)):
        raise ValueError(f"the arrays are {sorted(arrays)}: {KEYS}, {VALUE}, {SEEN} and slots must be there")
    num_rows, dim = arrays[KEYS][0][0], arrays[VALUE][0][-1]
    num_candidates = arrays[CANDIDATES][0][0] if CANDIDATES in arrays else 0
    for name, (shape, dtype) in arrays.items():
        length = num_candidates if name in OF_CANDIDATES else num_rows
        wanted: tuple[int, ...] = (length,)
        if name in (KEYS, CANDIDATES):
            fits = dtype == "uint64"
        elif name == SEEN or name in OF_CANDIDATES:
            fits = np.dtype(dtype).kind in "iu"
        else:
            wanted, fits = (length, dim), dtype == "float32"
        if not fits or shape != wanted or min(shape) < 0:
            raise ValueError(f"{name!r} is {dtype} of shape {shape}; its shape must be {wanted}")


def check_chains(
    chains: Sequence[Sequence[RowFile]], layout: Layout, tables: Sequence[TableSpec], step: int
) -> None:
    """Raises ValueError unless each bucket of each table has one chain, of files of ``step`` or before.

    chains: of each server. tables: in the order of their entries.
    """
    found, wanted = [(spec.rows or 0, spec.dim) for spec in tables], [entry.shape for entry in layout.tables]
    if found != wanted:
        raise ValueError(f"tables of (rows, dim) {found}, but the entries are {wanted}")
    _check_files([file for chain in chains for file in chain], step)
    holders = Counter(number for chain in chains for number in by_chunk([chain]))
    buckets = Counter(chunk.number for chunk in layout.chunks if layout.table_of(chunk) is not None)
    if holders != buckets:
        odd = sorted((buckets - holders) + (holders - buckets))
        raise ValueError(
            f"chunks {odd}: of no server, of several, or of no table. Each bucket must be of one"
        )
    expected: dict[int, set[tuple[str, str]]] = {}
    for number, chain in by_chunk(chains).items():
        _check_chain(number, chain)
        table = layout.table_of(layout.chunks[number])
        assert table is not None
        for file in chain:
            _check_bucket(file, number, tables[table], expected.setdefault(table, _kinds(file, number)))


def _check_files(files: Sequence[RowFile], step: int) -> None:
    known: dict[str, tuple[int, int, bool]] = {}
    for file in files:
        if step_of_row_file(file.file) != file.step or file.step > step:
            raise ValueError(
                f"row file {file.file!r} of step {file.step}: no such name, or not before {step}"
            )
        told = (file.num_bytes, file.step, file.whole)
        if known.setdefault(file.file, told) != told:
            raise ValueError(f"row file {file.file!r}: servers tell {told} and {known[file.file]} of it")


def _check_chain(number: int, chain: Sequence[RowFile]) -> None:
    steps = [file.step for file in chain]
    if [file.whole for file in chain] != [True] + [False] * (len(chain) - 1):
        raise ValueError(f"chunk {number}: its chain must be one whole file, and deltas after it")
    if any(later <= earlier for earlier, later in zip(steps, steps[1:], strict=False)):
        raise ValueError(f"chunk {number}: the steps of its chain are {steps}, and must ascend")


def _check_bucket(file: RowFile, number: int, spec: TableSpec, expected: set[tuple[str, str]]) -> None:
    named = file.chunks[number]
    check_rows({name: (array.shape, array.dtype) for name, array in named.items()})
    if named[VALUE].shape[1] != spec.dim or (CANDIDATES in named) != (spec.min_count > 1):
        raise ValueError(f"{file.file}: chunk {number} has {sorted(named)}, and is not of {spec}")
    if _kinds(file, number) != expected:
        found, wanted = sorted(_kinds(file, number)), sorted(expected)
        raise ValueError(f"{file.file}: chunk {number} has {found}, its table {wanted}")


def _kinds(file: RowFile, number: int) -> set[tuple[str, str]]:
    return {(name, array.dtype) for name, array in file.chunks[number].items()}
