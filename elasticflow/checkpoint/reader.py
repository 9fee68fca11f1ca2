"""Reads checkpoints: by chunks, by rows, or by tensors, and nothing whose hash is not the manifest's."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from elasticflow.checkpoint.catalog import commits, load_manifest
from elasticflow.checkpoint.chains import CANDIDATES, KEYS, OF_CANDIDATES, SEEN, RowFile, SavedRows, by_chunk
from elasticflow.checkpoint.failures import naming, noting
from elasticflow.checkpoint.frozen import problems_of, read_frozen
from elasticflow.checkpoint.hdf5 import bytes_of, check_frame, read_array, sha256
from elasticflow.checkpoint.manifest import Manifest, Part, kept_chunks
from elasticflow.checkpoint.names import AVERAGE, VALUE
from elasticflow.checkpoint.row_files import latest
from elasticflow.errors import CheckpointError
from elasticflow.step.layout import PASSING, Array, Chunk, Entry, Layout, Rule
from elasticflow.step.rows import ids_of
from elasticflow.storage import Storage


class _File(NamedTuple):
    """A part, or a row file: what must be known to read it. frame: None if it cannot be checked."""

    path: str
    num_bytes: int
    chunks: Mapping[int, Mapping[str, SavedRows]]
    frame: str | None


class Reader:
    """Reads one checkpoint's arrays. Files are opened when needed, and kept open until ``close``.

    layout: of the model that was saved. Methods raise CheckpointError, which names the file, the
    chunk and what is wrong. Not for several threads at once.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.manifest = manifest
        self.layout = manifest.layout()
        self._storage = storage
        parts = [_of_part(part, self.layout, manifest.folder) for part in manifest.parts]
        self._parts = {number: part for part in parts for number in part.chunks}
        self._chains = by_chunk(part.rows for part in manifest.parts)
        self._open_files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all files. What has been read is right, so a failure to close them is nobody's concern."""
        self._open_files.clear()
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
        return self._read(self._part(number), number, name)

    def read_rows(self, number: int) -> Iterator[dict[str, Array]]:
        """A bucket's arrays by name, see ``RowFile``, of each file of its chain, oldest first."""
        if number not in self._chains:
            raise CheckpointError(f"{self.manifest.folder}: there are no rows of chunk {number}")
        for row_file in self._chains[number]:
            file = _of_rows(row_file)
            yield {name: self._read(file, number, name) for name in file.chunks[number]}

    def problems(self, part: Part) -> list[str]:
        """Everything that is wrong with a server's files. Reads them all."""
        found: list[str] = []
        for file in (_of_part(part, self.layout, self.manifest.folder), *map(_of_rows, part.rows)):
            with noting(found):
                opened = self._open(file)
                for number, names in file.chunks.items():
                    for name in names:
                        with noting(found):
                            self._read(file, number, name)
                with noting(found), naming(f"{file.path}: the HDF5 around its arrays"):
                    if file.frame is not None:
                        arrays = [array for named in file.chunks.values() for array in named.values()]
                        extents = [(array.start, array.num_bytes) for array in arrays]
                        check_frame(opened, file.num_bytes, file.frame, extents)
        return found

    def _read(self, file: _File, number: int, name: str) -> Array:
        opened, array = self._open(file), file.chunks[number][name]
        with naming(f"{file.path}: chunk {number}, {name!r}"):
            if not 0 <= array.start <= file.num_bytes - array.num_bytes:
                raise ValueError(f"at byte {array.start}, which is outside the file")
            return read_array(opened, array.start, array.sha256, array.shape, array.dtype)

    def _open(self, file: _File) -> BinaryIO:
        """The open file. Raises CheckpointError if it is missing, cut or unreadable."""
        if file.path not in self._open_files:
            with naming(f"{file.path} ({_chunks_of(file)})"):
                if (size := self._storage.size(file.path)) != file.num_bytes:
                    raise ValueError(f"{size} bytes, expected {file.num_bytes}")
                self._open_files[file.path] = self._stack.enter_context(self._storage.open(file.path))
        return self._open_files[file.path]

    def _part(self, number: int) -> _File:
        if number not in self._parts:
            raise CheckpointError(f"{self.manifest.folder}: there is no chunk {number}")
        return self._parts[number]


def _of_part(part: Part, layout: Layout, folder: str) -> _File:
    chunks: dict[int, dict[str, SavedRows]] = {}
    for number, named in part.chunks.items():
        chunk = layout.chunks[number]
        shape, dtype = (chunk.stop - chunk.start,), layout.groups[chunk.group].dtype
        chunks[number] = {
            name: SavedRows(saved.start, saved.sha256, shape, dtype) for name, saved in named.items()
        }
    return _File(f"{folder}/{part.file}", part.num_bytes, chunks, part.frame)


def _of_rows(file: RowFile) -> _File:
    return _File(file.path, file.num_bytes, file.chunks, file.frame or None)


def _chunks_of(file: _File) -> str:
    """Such as ``chunks 0, 1, 2`` or, of many, ``12 chunks from 0 to 11``."""
    numbers = sorted(file.chunks)
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
        self.num_averages = 0

    def tensors(self, entry: Entry, slots: bool) -> Iterator[tuple[str, Array]]:
        """A tensor and, if wanted, the optimizer's slots for it, sorted, as ``name#slot``."""
        yield entry.name, self._tensor(entry, VALUE)
        group, _ = self._reader.layout.places[entry.name]
        names = set(self._reader.names(self._chunks[group][0].number)) - {VALUE}
        for slot in sorted(names) if slots else ():
            yield f"{entry.name}#{slot}", self._tensor(entry, slot)

    def averaged(self, entry: Entry) -> Iterator[tuple[str, Array]]:
        """A tensor, or its moving average, if it has one."""
        group, _ = self._reader.layout.places[entry.name]
        has = AVERAGE in self._reader.names(self._chunks[group][0].number)
        self.num_averages += has
        yield entry.name, self._tensor(entry, AVERAGE if has else VALUE)

    def _tensor(self, entry: Entry, name: str) -> Array:
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


class _Tables:
    """Tables as they are after the checkpoint's step, whatever files they are in."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._specs = dict(zip(reader.layout.tables, reader.manifest.tables, strict=True))

    def buckets(self, entry: Entry) -> Iterator[dict[str, Array]]:
        """The arrays of each bucket by their names in ``tensors``; keys ascend from one to the next."""
        group, _ = self._reader.layout.places[entry.name]
        for chunk in self._reader.layout.chunks:
            if chunk.group == group:
                pieces = self._reader.read_rows(chunk.number)
                arrays = latest(pieces, self._specs[entry].evict_after_steps, self._reader.manifest.step)
                yield {
                    f"{entry.name}.{_column(name)}": ids_of(array.view(np.uint64))
                    if name in (KEYS, CANDIDATES)
                    else array
                    for name, array in arrays.items()
                }

    def tensors(self, entry: Entry, slots: bool) -> Iterator[tuple[str, Array]]:
        """Ids and rows; with slots all there is. Holds the whole table."""
        columns: dict[str, list[Array]] = {}
        for arrays in self.buckets(entry):
            for name, array in arrays.items():
                if slots or name in (f"{entry.name}.ids", f"{entry.name}.rows"):
                    columns.setdefault(name, []).append(array)
        for name in list(columns):
            yield name, np.concatenate(columns.pop(name))

    def lines(self, entry: Entry) -> Iterator[str]:
        """See ``digest``. Holds one bucket."""
        hashes: dict[str, Any] = {}
        lengths: Counter[str] = Counter()
        arrays: dict[str, Array] = {}
        for arrays in self.buckets(entry):
            for name, array in arrays.items():
                hashes.setdefault(name, hashlib.sha256()).update(bytes_of(array))
                lengths[name] += len(array)
        for name, array in arrays.items():
            yield _line(name, array.dtype, (lengths[name], *array.shape[1:]), hashes[name].hexdigest())


def _column(name: str) -> str:
    """What an array of row files is called where people see it."""
    if name == SEEN or name in OF_CANDIDATES:
        return name
    return {KEYS: "ids", VALUE: "rows"}.get(name, f"rows#{name}")


def tensors(
    storage: Storage, manifest: Manifest, slots: bool = False, averages: bool = False
) -> Iterator[tuple[str, Array]]:
    """All parameters and buffers with their names, in the model's order; with slots as ``name#slot``.

    Those that are not trained come last. averages: the moving average in the place of each parameter that has
    one; raises CheckpointError if none has.

    A table is ``name.ids`` (n,), int64, and ``name.rows`` (n, dim), in the order of the ids' keys; with
    slots also ``name.rows#slot`` (n, dim), ``name.seen`` (n,), the step of each row's last update, and, if it
    has a minimum count, ``name.candidates``, ids that are not rows yet, with ``name.counts`` and
    ``name.candidates_seen``.
    Holds one tensor or table and a few chunks at a time. Raises CheckpointError at the first damage.
    """
    with Reader(storage, manifest) as reader:
        cut, tables = _Tensors(reader), _Tables(reader)
        for entry in reader.layout.entries:
            if entry.rule is Rule.ROWS:
                yield from tables.tensors(entry, slots)
            elif entry.rule not in PASSING:
                yield from cut.averaged(entry) if averages else cut.tensors(entry, slots)
        if averages and not cut.num_averages:
            raise CheckpointError(
                f"{manifest.folder}: there are no moving averages in it; give the optimizer one, as in "
                "ef.AdamW(ema=0.999)."
            )
    yield from read_frozen(storage, manifest.frozen)


def digest(storage: Storage, manifest: Manifest) -> str:
    """SHA-256 (hex) of the model: of names, shapes, dtypes and bytes of all that ``tensors`` has, with slots.

    The same for the same model, however many servers wrote it, and in how many row files. It is the hash of
    one line an array, in sorted order: its name, dtype, shape and the SHA-256 of its bytes.
    """
    lines: list[str] = []
    with Reader(storage, manifest) as reader:
        cut, tables = _Tensors(reader), _Tables(reader)
        for entry in reader.layout.entries:
            if entry.rule is Rule.ROWS:
                lines += tables.lines(entry)
            elif entry.rule not in PASSING:
                for name, array in cut.tensors(entry, slots=True):
                    lines.append(_line(name, array.dtype, array.shape, sha256(array)))
    lines += [_line(each.name, np.dtype(each.dtype), each.shape, each.sha256) for each in manifest.frozen]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _line(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], hashed: str) -> str:
    return f"{name!r} {dtype.name} {shape} {hashed}\n"


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
        found += problems_of(storage, manifest.frozen)
        return manifest, found
    return None, found


def is_committed(storage: Storage, manifest: Manifest, *, exactly: bool) -> bool:
    """Whether there is a whole checkpoint of the same step of the same run, whichever servers wrote it.

    exactly: with the same bits. Those of arrays are known by the hashes in both manifests, for its parts may
    be gone; rows of tables are read. Raises CheckpointError if that cannot be told.
    """
    if manifest.step not in commits(storage):
        return False
    there, damages = _verify(storage, manifest.step)
    if there is None or damages or _origin(there) != _origin(manifest):
        return False
    if not exactly:
        return True
    return _hashes(there) == _hashes(manifest) and _rows(storage, there) == _rows(storage, manifest)


def _origin(manifest: Manifest) -> bytes:
    """What a checkpoint is of, and where in training, but for the files that hold it."""
    bare = msgspec.structs.replace(manifest, parts=(), programs=(), sources=())
    return msgspec.json.encode(bare, order="deterministic")


def _hashes(manifest: Manifest) -> dict[tuple[int, str], str]:
    """Of all arrays that are no table's, by chunk and name."""
    return {
        (number, name): saved.sha256
        for part in manifest.parts
        for number, named in part.chunks.items()
        for name, saved in named.items()
    }


def _rows(storage: Storage, manifest: Manifest) -> list[str]:
    """See ``digest``: the lines of all tables."""
    with Reader(storage, manifest) as reader:
        tables = _Tables(reader)
        return [line for entry in reader.layout.tables for line in tables.lines(entry)]


def newest_intact(storage: Storage) -> tuple[Manifest | None, list[str]]:
    """The newest checkpoint without damage, None if there is none; and the damages of newer ones.

    Raises CheckpointError if that cannot be told, since the storage is away: try again.
    """
    while True:
        damages: list[str] = []
        there = commits(storage)
        for step in reversed(there):
            manifest, problems = _verify(storage, step)
            if not problems:
                return manifest, damages
            if step in commits(storage):  # a run that goes on removes what is old
                damages += problems
        if set(there) <= set(commits(storage)):
            return None, damages
