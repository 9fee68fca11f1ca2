"""One server's file of a checkpoint: its chunks, flat, each with its value and the slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.hdf5 import write_arrays
from elasticflow.checkpoint.manifest import Part, Saved, is_kept
from elasticflow.checkpoint.names import MANIFEST, VALUE
from elasticflow.step.layout import Array, Chunk, Layout
from elasticflow.storage import Storage


def write_part(
    storage: Storage,
    folder: str,
    name: str,
    layout: Layout,
    chunks: Iterable[tuple[Chunk, Mapping[str, Array]]],
) -> Part:
    """Writes a server's chunks to ``folder/name``, and returns what the manifest must know of the file.

    chunks: each with its ``value`` and its slots by name, all flat, contiguous, as long as the chunk
    and unchanged until this returns; they are not copied. Chunks of cost, metrics and tables are left out.
    Raises CheckpointError if an array does not fit or the storage fails. Then there is no such file, or
    a whole one of which nobody knows. Either way the next try, with the same name, finds its way.
    """
    path = f"{folder}/{name}"
    kept = [(chunk, arrays) for chunk, arrays in chunks if is_kept(layout, chunk)]
    for chunk, arrays in kept:
        with naming(f"{path}: chunk {chunk.number}"):
            _check_fit(layout, chunk, arrays)
    with naming(path):
        if not storage.exists(f"{folder}/{MANIFEST}"):
            storage.remove(path)  # left by a try that failed at the very end
        file = write_arrays(storage, path, kept)
    saved: dict[int, dict[str, Saved]] = {}
    for stored in file.arrays:
        saved.setdefault(stored.chunk, {})[stored.name] = Saved(stored.start, stored.sha256)
    return Part(name, file.num_bytes, saved, file.frame)


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
