"""Reads checkpoints: chunk by chunk or tensor by tensor, and nothing whose hash is not the manifest's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import BinaryIO

import numpy as np

from elasticflow.checkpoint.catalog import commits, load_manifest
from elasticflow.checkpoint.failures import naming, noting
from elasticflow.checkpoint.manifest import VALUE, Manifest, Part, kept_chunks
from elasticflow.checkpoint.parts import check_frame, read_array, sha256
from elasticflow.errors import CheckpointError
from elasticflow.layout import Array, Chunk, Entry, Rule
from elasticflow.storage import Storage


class Reader:
    """Reads one checkpoint's arrays. Files are opened when needed, and kept open until ``close``.

    layout: of the model that was saved. Methods raise CheckpointError, which names the file, the
    chunk and what is wrong. Not for several threads at once.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.manifest = manifest
        self.layout = manifest.layout()
        self._storage = storage
        self._parts = {number: part for part in manifest.parts for number in part.chunks}
        self._files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all files. What has been read is right, so a failure to close them is nobody's concern."""
        self._files.clear()
        with suppress(OSError, RuntimeError):
            self._stack.close()

    def read_chunk(self, number: int) -> dict[str, Array]:
        """A chunk's value and slots by name: flat arrays that the caller owns."""
        return {name: self.read_array(number, name) for name in self.names(number)}

    def names(self, number: int) -> list[str]:
        """Names of a chunk's arrays: ``value``, and those of its slots."""
        return list(self._part(number).chunks[number])

    def read_array(self, number: int, name: str) -> Array:
        """One array of a chunk."""
        part = self._part(number)
        file = self._open(part)
        with naming(f"{self._path(part)}: chunk {number}, {name!r}"):
            return read_array(file, part.chunks[number][name], self.layout, self.layout.chunks[number])

    def problems(self, part: Part) -> list[str]:
        """Everything that is wrong with a part. Reads it all."""
        found: list[str] = []
        with noting(found):
            file = self._open(part)
            for number, names in part.chunks.items():
                for name in names:
                    with noting(found):
                        self.read_array(number, name)
            with noting(found), naming(f"{self._path(part)}: the HDF5 around its arrays"):
                check_frame(file, part, self.layout)
        return found

    def _open(self, part: Part) -> BinaryIO:
        """The open file of a part. Raises CheckpointError if it is missing, cut or unreadable."""
        if part.file not in self._files:
            path = self._path(part)
            with naming(f"{path} ({_chunks_of(part)})"):
                if (size := self._storage.size(path)) != part.num_bytes:
                    raise ValueError(f"{size} bytes, expected {part.num_bytes}")
                self._files[part.file] = self._stack.enter_context(self._storage.open(path))
        return self._files[part.file]

    def _part(self, number: int) -> Part:
        if number not in self._parts:
            raise CheckpointError(f"{self.manifest.folder}: there is no chunk {number}")
        return self._parts[number]

    def _path(self, part: Part) -> str:
        return f"{self.manifest.folder}/{part.file}"


def _chunks_of(part: Part) -> str:
    """Such as ``chunks 0, 1, 2`` or, of many, ``12 chunks from 0 to 11``."""
    numbers = sorted(part.chunks)
    if len(numbers) > 8:
        return f"{len(numbers)} chunks from {numbers[0]} to {numbers[-1]}"
    return f"chunks {', '.join(map(str, numbers)) or 'none'}"


class _Tensors:
    """Cuts tensors out of chunks. Reads each chunk once if tensors are asked for as they lie."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._chunks: dict[int, list[Chunk]] = {}
        for chunk in kept_chunks(reader.layout):
            self._chunks.setdefault(chunk.group, []).append(chunk)
        self._last: dict[tuple[int, str], tuple[int, Array]] = {}

    def slots(self, entry: Entry) -> list[str]:
        """Names of the optimizer's slots for a tensor, sorted."""
        group, _ = self._reader.layout.places[entry.name]
        return sorted(set(self._reader.names(self._chunks[group][0].number)) - {VALUE})

    def tensor(self, entry: Entry, name: str) -> Array:
        """The value or a slot of a tensor, in its shape."""
        group, start = self._reader.layout.places[entry.name]
        pieces = list(self._pieces(group, name, start, start + entry.size))
        return np.concatenate(pieces).reshape(entry.shape)

    def _pieces(self, group: int, name: str, start: int, stop: int) -> Iterator[Array]:
        """Elements ``start..stop`` of a group, chunk by chunk; one empty piece if there are none."""
        chunks = self._chunks[group]
        length = chunks[0].stop  # of all chunks but the last, which may be shorter
        for chunk in chunks[start // length : max(start, stop - 1) // length + 1]:
            array = self._array(group, name, chunk.number)
            yield array[max(start - chunk.start, 0) : max(stop - chunk.start, 0)]

    def _array(self, group: int, name: str, number: int) -> Array:
        if self._last.get((group, name), (None,))[0] != number:
            self._last[group, name] = (number, self._reader.read_array(number, name))
        return self._last[group, name][1]


def tensors(storage: Storage, manifest: Manifest, slots: bool = False) -> Iterator[tuple[str, Array]]:
    """All parameters and buffers with their names, in the model's order; with slots as ``name#slot``.

    Holds one tensor and a few chunks at a time. Raises CheckpointError at the first damage.
    """
    with Reader(storage, manifest) as reader:
        cut = _Tensors(reader)
        for entry in reader.layout.entries:
            if entry.rule is not Rule.REPORT:
                yield entry.name, cut.tensor(entry, VALUE)
                for slot in cut.slots(entry) if slots else ():
                    yield f"{entry.name}#{slot}", cut.tensor(entry, slot)


def digest(storage: Storage, manifest: Manifest) -> str:
    """SHA-256 (hex) of the model: of names, shapes, dtypes and bytes of parameters, buffers and slots.

    The same for the same model, however many servers wrote it. It is the hash of one line a
    tensor, in sorted order: its name, dtype, shape and the SHA-256 of its bytes.
    """
    lines = (
        f"{name!r} {array.dtype.name} {array.shape} {sha256(array)}\n"
        for name, array in tensors(storage, manifest, slots=True)
    )
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def verify(storage: Storage, step: int) -> list[str]:
    """Everything that is wrong with a checkpoint, each a text that names file and chunk. Reads it all.

    Raises CheckpointError if that cannot be told, since the storage is away.
    """
    return _verify(storage, step)[1]


def _verify(storage: Storage, step: int) -> tuple[Manifest | None, list[str]]:
    found: list[str] = []
    with noting(found):
        manifest = load_manifest(storage, step)
        with Reader(storage, manifest) as reader:
            for part in manifest.parts:
                found += reader.problems(part)
        return manifest, found
    return None, found


def newest_intact(storage: Storage) -> tuple[Manifest | None, list[str]]:
    """The newest checkpoint without damage, None if there is none; and the damages of newer ones.

    Raises CheckpointError if that cannot be told, since the storage is away: try again.
    """
    damages: list[str] = []
    for step in reversed(commits(storage)):
        manifest, problems = _verify(storage, step)
        if not problems:
            return manifest, damages
        damages += problems
    return None, damages
