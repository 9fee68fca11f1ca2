"""One server's file of a checkpoint: HDF5, with ``/<chunk number>/<array's name>``, one flat dataset each.

The HDF5 library never touches the storage: where that fails or hangs, it crashes, or keeps the process
from ending. It makes the file without the arrays, in memory, and tells where they belong. The file is
then written from front to back, while another thread hashes. Arrays are read from where the manifest
says that they are; the HDF5 around them is for other tools.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import MANIFEST, VALUE, Part, Saved
from elasticflow.layout import Array, Chunk, Layout, Rule, aligned_empty
from elasticflow.storage import Storage, Writable

_PAGE_BYTES = 4096
_PIECE_BYTES = 1 << 20


def write_part(
    storage: Storage,
    folder: str,
    name: str,
    layout: Layout,
    chunks: Iterable[tuple[Chunk, Mapping[str, Array]]],
) -> Part:
    """Writes a server's chunks to ``folder/name``, and returns what the manifest must know of the file.

    chunks: each with its ``value`` and its slots by name, all flat, contiguous, as long as the chunk
    and unchanged until this returns; they are not copied. Chunks of cost and metrics are left out.
    Raises CheckpointError if an array does not fit or the storage fails. Then there is no such file, or
    a whole one of which nobody knows. Either way the next try, with the same name, finds its way.
    """
    path = f"{folder}/{name}"
    kept = [(chunk, arrays) for chunk, arrays in chunks if layout.groups[chunk.group].rule is not Rule.REPORT]
    for chunk, arrays in kept:
        with naming(f"{path}: chunk {chunk.number}"):
            _check_fit(layout, chunk, arrays)
    with naming(path), ThreadPoolExecutor(1, "hash") as hasher:
        if not storage.exists(f"{folder}/{MANIFEST}"):
            storage.remove(path)  # left by a try that failed at the very end
        skeleton = _Skeleton()
        places = _lay_out(skeleton, kept)
        hashes = [hasher.submit(sha256, place.array) for place in places]
        try:
            with storage.create(path) as file:
                frame = _write(file, skeleton, places)
        except BaseException:
            hasher.shutdown(wait=False, cancel_futures=True)
            raise
        saved: dict[int, dict[str, Saved]] = {}
        for place, found in zip(places, hashes, strict=True):
            saved.setdefault(place.chunk, {})[place.name] = Saved(place.start, found.result())
        return Part(name, skeleton.length, saved, frame)


def read_array(file: BinaryIO, saved: Saved, layout: Layout, chunk: Chunk) -> Array:
    """One array of a part that is open, flat, in memory aligned as ``Vector``'s.

    Raises ValueError if it is not what was saved.
    """
    array: Array = aligned_empty(layout.chunk_bytes(chunk)).view(layout.groups[chunk.group].dtype)
    file.seek(saved.start)
    if (num_bytes := file.readinto(_bytes_of(array))) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"ends after {num_bytes} bytes, expected {array.nbytes}")
    _compare(sha256(array), saved.sha256)
    return array


def check_frame(file: BinaryIO, part: Part, layout: Layout) -> None:
    """Raises ValueError if the bytes of a part that belong to no array are not what was written."""
    frame, done = hashlib.sha256(), 0
    arrays = sorted(
        (saved.start, layout.chunk_bytes(layout.chunks[number]))
        for number, named in part.chunks.items()
        for saved in named.values()
    )
    for start, num_bytes in (*arrays, (part.num_bytes, 0)):
        if not done <= start <= part.num_bytes:
            raise ValueError(f"an array at byte {start}, which overlaps another or lies outside the file")
        file.seek(done)
        for length in _pieces(start - done):
            frame.update(file.read(length))
        done = start + num_bytes
    _compare(frame.hexdigest(), part.frame)


def _pieces(num_bytes: int) -> Iterator[int]:
    """Cuts what is longer than it can be, by rights, into what memory can hold."""
    for start in range(0, num_bytes, _PIECE_BYTES):
        yield min(_PIECE_BYTES, num_bytes - start)


def _compare(found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"SHA-256 is {found}, expected {expected}")


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def sha256(array: Array) -> str:
    """SHA-256 (hex) of the bytes of a contiguous array, without a copy."""
    return hashlib.sha256(_bytes_of(array)).hexdigest()


class _Place(NamedTuple):
    """An array, and where in the file it begins, in bytes."""

    start: int
    chunk: int
    name: str
    array: Array


def _write(file: Writable, skeleton: _Skeleton, places: list[_Place]) -> str:
    """Writes a file from front to back. Returns the SHA-256 of what belongs to no array."""
    frame, done = hashlib.sha256(), 0
    for place in places:
        frame.update(between := skeleton.between(done, place.start))
        file.write(between)
        file.write(_bytes_of(place.array))
        done = place.start + place.array.nbytes
    frame.update(between := skeleton.between(done, skeleton.length))
    file.write(between)
    return frame.hexdigest()


def _lay_out(file: _Skeleton, chunks: Iterable[tuple[Chunk, Mapping[str, Array]]]) -> list[_Place]:
    """Makes an HDF5 file with datasets that nothing is written to. Returns where they lie, in that order.

    Without times, so that the same arrays make the same file.
    """
    import h5py  # late: most processes write no part
    from h5py import h5d, h5f, h5g, h5p, h5s, h5t

    access, of_file = h5p.create(h5p.FILE_ACCESS), h5p.create(h5p.FILE_CREATE)
    access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    of_group, of_dataset = h5p.create(h5p.GROUP_CREATE), h5p.create(h5p.DATASET_CREATE)
    of_dataset.set_layout(h5d.CONTIGUOUS)
    of_dataset.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    of_dataset.set_fill_time(h5d.FILL_TIME_NEVER)
    for made in (of_file, of_group, of_dataset):
        made.set_obj_track_times(False)

    places: list[_Place] = []
    with h5py.File(h5f.create(repr(file).encode(), h5f.ACC_TRUNC, of_file, access)) as hdf5:
        for chunk, named in chunks:
            group = h5g.create(hdf5.id, str(chunk.number).encode(), gcpl=of_group)
            for name, array in named.items():
                dtype, space = h5t.py_create(array.dtype, logical=True), h5s.create_simple(array.shape)
                dataset = h5d.create(group, name.encode(), dtype, space, of_dataset)
                places.append(_Place(dataset.get_offset(), chunk.number, name, array))
    return sorted(places, key=lambda place: place.start)


class _Skeleton(io.RawIOBase):
    """A file in memory that may be long, and is empty for the most part."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = self.length = 0

    def between(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to ``stop``."""
        first = start // _PAGE_BYTES
        numbers = range(first, -(-stop // _PAGE_BYTES))
        pages = b"".join(self._pages.get(number, bytes(_PAGE_BYTES)) for number in numbers)
        return pages[start - first * _PAGE_BYTES : stop - first * _PAGE_BYTES]

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        num_bytes = left.nbytes
        while left:
            number, start = divmod(self._position, _PAGE_BYTES)
            piece = left[: _PAGE_BYTES - start]
            page = self._pages.setdefault(number, bytearray(_PAGE_BYTES))
            page[start : start + len(piece)] = piece
            self._position += len(piece)
            left = left[len(piece) :]
        self.length = max(self.length, self._position)
        return num_bytes

    def readinto(self, buffer: Any) -> int:
        stop = min(self._position + len(buffer), self.length)
        data = self.between(self._position, stop)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.length}
        self._position = start[whence] + offset
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.length = self._position if size is None else size
        return self.length

    def readable(self) -> bool:
        return True

    writable = seekable = readable


def _check_fit(layout: Layout, chunk: Chunk, arrays: Mapping[str, Array]) -> None:
    shape, dtype = (chunk.stop - chunk.start,), np.dtype(layout.groups[chunk.group].dtype)
    if VALUE not in arrays:
        raise ValueError(f"{VALUE!r} must be there; found {list(arrays)}")
    for name, array in arrays.items():
        if array.dtype != dtype:
            raise ValueError(f"{name!r} is {array.dtype}, must be {dtype}")
        if array.shape != shape or not array.flags.c_contiguous or "/" in name:
            raise ValueError(
                f"{name!r} has shape {array.shape}, must have {shape}, contiguous; no '/' in names"
            )
