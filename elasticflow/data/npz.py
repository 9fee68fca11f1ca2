"""Records in NumPy's ``.npz`` files, memory-mapped where they are stored uncompressed in a local file."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from elasticflow.data.arrays import ArraySource
from elasticflow.data.blocks import BLOCK_BYTES, CACHE_BYTES, REMOTE_AHEAD, Block, BlockSource
from elasticflow.data.files import PAGE_BYTES, File, LocalFile, existing_file, identities
from elasticflow.data.permutation import Rows
from elasticflow.data.source import (
    Array,
    ArrayLike,
    Records,
    Source,
    choose_names,
    kept_names,
    make_column,
    names_in,
    reopened,
)
from elasticflow.errors import DataError

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""A zip member's local header: signature, ..., lengths of the name and of the extra field."""

_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NPZ(ArraySource):
    """Arrays of a file that ``numpy.savez`` or ``numpy.savez_compressed`` wrote.

    ``NPZ("digits.npz", x="images", y="labels")``: column name = array in the file; without keywords,
    every array is a column. Arrays of ``savez`` are memory-mapped and may be larger than memory;
    compressed ones are loaded. In HDFS, arrays of ``savez`` are read in blocks, of which ``cache_bytes``
    are kept, and compressed ones are loaded if they have room there. Pickled objects are never loaded.
    Raises DataError if the file is missing, damaged or no NPZ file, or an array is missing or unfit.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES, **names: str) -> None:
        file = existing_file("NPZ", path)
        self.files = identities([file])
        what = f"NPZ file {file}"
        with file.unchanged():
            try:
                with file.buffered(BLOCK_BYTES) as opened, zipfile.ZipFile(opened) as archive:
                    there = [name.removesuffix(".npy") for name in archive.namelist()]
                    chosen = choose_names(what, "array", names, there)
                    found = {column: _Member.of(file, archive, entry) for column, entry in chosen.items()}
                    smallest = sorted(found, key=lambda column: found[column].num_bytes)
                    arrays: dict[str, ArrayLike] = {}
                    for column in smallest:
                        arrays[column] = found[column].array(archive, cache_bytes)
                        cache_bytes = max(0, cache_bytes - found[column].num_bytes)
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError, struct.error) as error:
                raise DataError(f"{what} is damaged or is no NPZ file: {error}. Write it again.") from error
        self._names = chosen
        is_mapped = any(isinstance(getattr(array, "base", None), np.memmap) for array in arrays.values())
        mapped = [file] if is_mapped and isinstance(file, LocalFile) else []
        super().__init__(what, {column: arrays[column] for column in chosen}, mapped=mapped)

    @staticmethod
    def names_in(path: str) -> list[str]:
        """What the file calls its arrays. Raises DataError."""
        file = existing_file("NPZ", path)
        try:
            with file.buffered(BLOCK_BYTES) as opened, zipfile.ZipFile(opened) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError, EOFError, struct.error) as error:
            raise DataError(
                f"NPZ file {file} is damaged or is no NPZ file: {error}. Write it again."
            ) from error

    def over(self, path: str | Records, wanted: Mapping[str, str] | None) -> Source:
        return reopened(path, kept_names(self._names, names_in(path), wanted))


class _Header(NamedTuple):
    """What the start of a member says about the array in it."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]
    length: int
    """Bytes before the first element."""


class _Member(NamedTuple):
    """One array of a file."""

    what: str
    file: File
    info: zipfile.ZipInfo
    header: _Header
    num_bytes: int

    @classmethod
    def of(cls, file: File, archive: zipfile.ZipFile, name: str) -> _Member:
        """Raises DataError if it holds Python objects, is no array, or is shorter than it says."""
        what = f"NPZ file {file}: array {name!r}"
        info = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
        header = _header(what, archive, info)
        make_column(what, name, header.shape, header.dtype)
        num_bytes = header.dtype.itemsize * math.prod(header.shape)
        if header.length + num_bytes > info.file_size:
            raise DataError(f"{what} is cut short: {num_bytes} bytes expected. Write the file again.")
        return cls(what, file, info, header, num_bytes)

    def array(self, archive: zipfile.ZipFile, cache_bytes: int) -> ArrayLike:
        """Mapped, or read in blocks, if it can be; else loaded.

        Raises DataError if it cannot, and is too large for the cache of a remote file.
        """
        if self.info.compress_type == zipfile.ZIP_STORED and self.num_bytes:
            start = _data_start(self.file, self.info) + self.header.length
            if not self.file.is_remote:
                return _mapped(self.file.name, start, self.header)
            if not self.header.fortran:
                return _Stored(self, start, cache_bytes)
        if self.file.is_remote and self.num_bytes > cache_bytes:
            raise DataError(
                f"{self.what} can only be loaded as a whole, as it is compressed or in Fortran order: "
                f"{self.num_bytes} bytes, and {cache_bytes} of cache_bytes are left. Write it with "
                "numpy.savez in C order, or give NPZ more cache_bytes."
            )
        with archive.open(self.info) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


class _Stored(BlockSource):
    """An array that lies uncompressed in a remote file. Any row may be wanted next, as if it were mapped.

    Where the cache cannot hold all of it, blocks are small: little is read beside what is wanted.
    """

    def __init__(self, member: _Member, start: int, cache_bytes: int) -> None:
        self.shape, self.dtype = member.header.shape, member.header.dtype
        self._file, self._first_byte = member.file, start
        self._row_bytes = member.num_bytes // self.shape[0]
        block_bytes = BLOCK_BYTES if member.num_bytes <= cache_bytes else PAGE_BYTES
        per_block = max(1, block_bytes // self._row_bytes)
        starts = range(0, self.shape[0], per_block)
        rows = [min(per_block, self.shape[0] - start) for start in starts]
        super().__init__(member.what, rows, cache_bytes, ahead=REMOTE_AHEAD)

    def read_block(self, number: int) -> Block:
        rows = self.block_starts[number : number + 2]
        first, last = (self._first_byte + rows * self._row_bytes).tolist()
        with self._file.unchanged():
            array = np.frombuffer(self._file.read(first, last), self.dtype)
        return {"": array.reshape(-1, *self.shape[1:])}

    def block_name(self, number: int) -> str:
        return f"{self.what}, rows {self.block_starts[number]}..{self.block_starts[number + 1]}"

    def take(self, indices: Rows, axis: Literal[0]) -> Array:
        """A new array of these rows."""
        array = self.rows(indices)[""]
        assert isinstance(array, np.ndarray)
        return array


def _header(what: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
            if version not in _READ_HEADER:
                raise ValueError(f"version {version} of the format is not known")
            return _Header(*_READ_HEADER[version](member), member.tell())
        except ValueError as error:
            raise DataError(f"{what} is no NumPy array: {error}.") from error


def _mapped(path: str, start: int, header: _Header) -> Array:
    """The array whose elements start at byte ``start`` of the file, read only when touched."""
    order: Literal["F", "C"] = "F" if header.fortran else "C"
    return np.asarray(np.memmap(path, header.dtype, "r", start, header.shape, order))


def _data_start(file: File, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start. Its own header says so: the directory's extra field may differ."""
    header = file.read(info.header_offset, info.header_offset + _LOCAL_HEADER.size)
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    return int(info.header_offset + _LOCAL_HEADER.size + name_length + extra_length)
