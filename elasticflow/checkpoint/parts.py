"""One server's file of a checkpoint: HDF5, with ``/<chunk number>/<array's name>``, one flat dataset each.

The HDF5 version is one whose own structures carry checksums, so that damage to them is an error
and not another structure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.manifest import VALUE, Part
from elasticflow.layout import Array, Chunk, Layout, Rule, aligned_empty
from elasticflow.storage import Storage

_LIBVER = ("v108", "v108")


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
    Raises CheckpointError, and leaves no file, if an array does not fit or the storage fails.
    """
    path = f"{folder}/{name}"
    hashes: dict[int, dict[str, str]] = {}
    with naming(path), storage.create(path) as file, _new_hdf5(file) as hdf5:
        for chunk, arrays in chunks:
            if layout.groups[chunk.group].rule is not Rule.REPORT:
                with naming(f"{path}: chunk {chunk.number}"):
                    _check_fit(layout, chunk, arrays)
                    hashes[chunk.number] = _write_chunk(hdf5, chunk, arrays)
    with naming(path):
        return Part(name, storage.size(path), hashes)


def read_array(hdf5: Any, chunk: Chunk, name: str) -> Array:
    """One array of a part that is open, flat, in memory aligned as ``Vector``'s.

    Raises ValueError or h5py's errors if it is not there, or not as long as its chunk.
    """
    length, dataset = chunk.stop - chunk.start, hdf5[f"{chunk.number}/{name}"]
    if getattr(dataset, "shape", None) != (length,) or dataset.dtype.hasobject:
        raise ValueError(f"{dataset} instead of {length} numbers")
    array: Array = aligned_empty(dataset.size * dataset.dtype.itemsize).view(dataset.dtype)
    dataset.read_direct(array)
    return array


def sha256(array: Array) -> str:
    """SHA-256 (hex) of the bytes of a contiguous array, without a copy."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def _write_chunk(hdf5: Any, chunk: Chunk, arrays: Mapping[str, Array]) -> dict[str, str]:
    group = hdf5.create_group(str(chunk.number))
    for name, array in arrays.items():
        group.create_dataset(name, data=array)
    return {name: sha256(array) for name, array in arrays.items()}


def _check_fit(layout: Layout, chunk: Chunk, arrays: Mapping[str, Array]) -> None:
    shape, dtype = (chunk.stop - chunk.start,), np.dtype(layout.groups[chunk.group].dtype)
    if VALUE not in arrays or arrays[VALUE].dtype != dtype:
        raise ValueError(f"{VALUE!r} must be there and be {dtype}; found {list(arrays)}")
    for name, array in arrays.items():
        if array.shape != shape or not array.flags.c_contiguous or "/" in name:
            raise ValueError(
                f"{name!r} has shape {array.shape}, must have {shape}, contiguous; no '/' in names"
            )


@contextmanager
def _new_hdf5(file: Any) -> Iterator[Any]:
    import h5py  # late: most processes write no part

    hdf5 = h5py.File(file, "w", libver=_LIBVER)
    try:
        yield hdf5
    except BaseException:
        with suppress(Exception):  # a full disk fails the close as well, and tells less there
            hdf5.close()
        raise
    hdf5.close()
