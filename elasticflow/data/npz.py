"""Records in NumPy's ``.npz`` files, memory-mapped where they are stored uncompressed."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from typing import Literal, NamedTuple

import numpy as np

from elasticflow.data.arrays import ArraySource
from elasticflow.data.files import existing_file
from elasticflow.data.source import Array, choose_names, make_column
from elasticflow.errors import DataError

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""A zip member's local header: signature, ..., lengths of the name and of the extra field."""

_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NPZ(ArraySource):
    """Arrays of a file that ``numpy.savez`` or ``numpy.savez_compressed`` wrote.

    ``NPZ("digits.npz", x="images", y="labels")``: column name = array in the file; without keywords,
    every array is a column. Arrays of ``savez`` are memory-mapped and may be larger than memory;
    compressed ones are loaded. Pickled objects are never loaded.
    Raises DataError if the file is missing, damaged or no NPZ file, or an array is missing or unfit.
    """

    def __init__(self, path: str | os.PathLike[str], **names: str) -> None:
        path = existing_file("NPZ", path)
        what = f"NPZ file {path}"
        try:
            with zipfile.ZipFile(path) as archive:
                there = [name.removesuffix(".npy") for name in archive.namelist()]
                chosen = choose_names(what, "array", names, there)
                arrays = {column: _member(path, archive, entry) for column, entry in chosen.items()}
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, struct.error) as error:
            raise DataError(f"{what} is damaged or is no NPZ file: {error}. Write it again.") from error
        super().__init__(what, arrays)


class _Header(NamedTuple):
    """What the start of a member says about the array in it."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]
    length: int
    """Bytes before the first element."""


def _member(path: str, archive: zipfile.ZipFile, name: str) -> Array:
    """One array of the file, mapped if it can be, else loaded.

    Raises DataError if it holds Python objects, is no array, or is shorter than it says.
    """
    what = f"NPZ file {path}: array {name!r}"
    info = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
    header = _header(what, archive, info)
    make_column(what, name, header.shape, header.dtype)
    num_bytes = header.dtype.itemsize * math.prod(header.shape)
    if header.length + num_bytes > info.file_size:
        raise DataError(f"{what} is cut short: {num_bytes} bytes expected. Write the file again.")
    if info.compress_type == zipfile.ZIP_STORED and num_bytes:
        return _mapped(path, _data_start(path, info) + header.length, header)
    with archive.open(info) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


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


def _data_start(path: str, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start. Its own header says so: the directory's extra field may differ."""
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        _, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return int(info.header_offset + _LOCAL_HEADER.size + name_length + extra_length)
