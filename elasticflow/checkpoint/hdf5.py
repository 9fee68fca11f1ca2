"""Files of arrays: HDF5, with ``/<chunk number>/<array's name>``, one dataset each.

The HDF5 library never touches the storage: where that fails or hangs, it crashes, or keeps the process
from ending. It makes the file without the arrays, in memory, and tells where they belong. The file is
then written from front to back, while another thread hashes. Arrays are read from where the manifest
says that they are; the HDF5 around them is for other tools.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from elasticflow.process.available import available_memory
from elasticflow.step.layout import Array, Chunk, aligned_empty
from elasticflow.storage import Storage, Writable

LARGE_BYTES = 64 << 20
"""From here on an array is only read if there is memory for it."""
_PAGE_BYTES = 4096
_PIECE_BYTES = 1 << 20


class Stored(NamedTuple):
    """An array of a file: where it begins, in bytes, and the SHA-256 (hex) of its bytes."""

    chunk: int
    name: str
    array: Array
    start: int
    sha256: str


class CheckedFile(NamedTuple):
    """A file that has been written. frame: the SHA-256 of the bytes that belong to no array."""

    num_bytes: int
    arrays: list[Stored]
    frame: str


def write_arrays(
    storage: Storage, path: str, chunks: Iterable[tuple[Chunk, Mapping[str, Array]]]
) -> CheckedFile:
    """Writes a new file of contiguous arrays. They are not copied, and must stay as they are until then."""
    with ThreadPoolExecutor(1, "hash") as hasher:
        skeleton = _Skeleton()
        places = _lay_out(skeleton, chunks)
        hashes = [hasher.submit(sha256, place.array) for place in places]
        try:
            with storage.create(path) as file:
                frame = _write(file, skeleton, places)
        except BaseException:
            hasher.shutdown(wait=False, cancel_futures=True)
            raise
        arrays = [
            Stored(place.chunk, place.name, place.array, place.start, found.result())
            for place, found in zip(places, hashes, strict=True)
        ]
        return CheckedFile(skeleton.length, arrays, frame)


def read_array(file: BinaryIO, start: int, expected: str, shape: tuple[int, ...], dtype: str) -> Array:
    """One array of an open file, in memory aligned as ``Vector``'s. expected: the SHA-256 (hex) of its bytes.

    Raises ValueError if it is not what was saved.
    """
    _check_room(math.prod(shape) * np.dtype(dtype).itemsize)
    array: Array = aligned_empty(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
    file.seek(start)
    if (num_bytes := file.readinto(bytes_of(array))) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"ends after {num_bytes} bytes, expected {array.nbytes}")
    _compare(sha256(array), expected)
    return array


def _check_room(num_bytes: int) -> None:
    """Raises MemoryError if there is none for so many bytes: a sparse file may claim any length."""
    if num_bytes > LARGE_BYTES:
        left = min(available_memory().values(), default=num_bytes)
        if num_bytes > left:
            raise MemoryError(f"an array of {num_bytes:,} bytes, and {left:,} are free")


def check_frame(file: BinaryIO, num_bytes: int, expected: str, arrays: Iterable[tuple[int, int]]) -> None:
    """Raises ValueError if the bytes of an open file that belong to no array are not what was written.

    num_bytes: of the file. expected: their SHA-256 (hex). arrays: (start, number of bytes) of all of them.
    """
    frame, done = hashlib.sha256(), 0
    for start, length in (*sorted(arrays), (num_bytes, 0)):
        if not done <= start <= num_bytes:
            raise ValueError(f"an array at byte {start}, which overlaps another or lies outside the file")
        file.seek(done)
        for piece in _pieces(start - done):
            frame.update(file.read(piece))
        done = start + length
    _compare(frame.hexdigest(), expected)


def _pieces(num_bytes: int) -> Iterator[int]:
    """Cuts what is longer than it can be, by rights, into what memory can hold."""
    for start in range(0, num_bytes, _PIECE_BYTES):
        yield min(_PIECE_BYTES, num_bytes - start)


def _compare(found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"SHA-256 is {found}, expected {expected}")


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data


def sha256(array: Array) -> str:
    """SHA-256 (hex) of the bytes of a contiguous array, without a copy."""
    return hashlib.sha256(bytes_of(array)).hexdigest()


class _ChunkPlace(NamedTuple):
    """An array, and where in the file it begins, in bytes."""

    start: int
    chunk: int
    name: str
    array: Array


def _write(file: Writable, skeleton: _Skeleton, places: list[_ChunkPlace]) -> str:
    """Writes a file from front to back. Returns the SHA-256 of what belongs to no array."""
    frame, done = hashlib.sha256(), 0
    for place in places:
        frame.update(between := skeleton.between(done, place.start))
        file.write(between)
        file.write(bytes_of(place.array))
        done = place.start + place.array.nbytes
    frame.update(between := skeleton.between(done, skeleton.length))
    file.write(between)
    return frame.hexdigest()


def _lay_out(file: _Skeleton, chunks: Iterable[tuple[Chunk, Mapping[str, Array]]]) -> list[_ChunkPlace]:
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
    # Each gets its place at once, and nothing is written there: the arrays come later, from elsewhere.
    of_dataset.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    of_dataset.set_fill_time(h5d.FILL_TIME_NEVER)
    for made in (of_file, of_group, of_dataset):
        made.set_obj_track_times(False)

    places: list[_ChunkPlace] = []
    # The driver wants a file object's own text for a name.
    with h5py.File(h5f.create(repr(file).encode(), h5f.ACC_TRUNC, of_file, access)) as hdf5:
        for chunk, named in chunks:
            group = h5g.create(hdf5.id, str(chunk.number).encode(), gcpl=of_group)
            for name, array in named.items():
                dtype, space = h5t.py_create(array.dtype, logical=True), h5s.create_simple(array.shape)
                dataset = h5d.create(group, name.encode(), dtype, space, of_dataset)
                start = dataset.get_offset() or 0  # an array without elements lies nowhere
                places.append(_ChunkPlace(start, chunk.number, name, array))
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
