"""Writes row files, and says what the row files of a chain come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from elasticflow.checkpoint.catalog import commits
from elasticflow.checkpoint.chains import (
    CANDIDATES,
    CANDIDATES_SEEN,
    KEYS,
    OF_CANDIDATES,
    SEEN,
    RowFile,
    SavedRows,
    check_rows,
)
from elasticflow.checkpoint.failures import naming
from elasticflow.checkpoint.hdf5 import write_arrays
from elasticflow.checkpoint.names import ROWS
from elasticflow.step.layout import Array, Chunk
from elasticflow.step.rows import Keys, bounds
from elasticflow.storage import Storage


def write_rows(
    storage: Storage,
    file_name: str,
    table_chunks: Iterable[tuple[Chunk, Mapping[str, Array]]],
    *,
    step: int,
    whole: bool,
) -> RowFile:
    """Writes ``rows/file_name``, see ``row_file_name``, and returns what the manifest must know of the file.

    table_chunks: buckets, each with its arrays as ``RowFile`` names them, contiguous and unchanged until this
    returns; they are not copied. whole: they are all rows of all buckets of the server; otherwise
    they are a delta, of which empty buckets are left out.
    Raises CheckpointError if an array does not fit, the storage fails, or a checkpoint is committed that may
    need a file of this name. Then there is no such file, or a whole one of which nobody knows. Either way
    the next try, with the same name, finds its way.
    """
    path = f"{ROWS}/{file_name}"
    kept = []
    for chunk, arrays in table_chunks:
        with naming(f"{path}: chunk {chunk.number}"):
            _check_fit(chunk, arrays)
        if whole or any(map(len, arrays.values())):
            kept.append((chunk, arrays))
    with naming(path):
        if not any(committed >= step for committed in commits(storage)):
            storage.remove(path)  # left by a try that failed at the very end, or by a run that ended before
        file = write_arrays(storage, path, kept)
    saved: dict[int, dict[str, SavedRows]] = {}
    for stored in file.arrays:
        array = SavedRows(stored.start, stored.sha256, stored.array.shape, stored.array.dtype.name)
        saved.setdefault(stored.chunk, {})[stored.name] = array
    return RowFile(file_name, file.num_bytes, step, whole, saved, file.frame)


def latest(pieces: Iterable[Mapping[str, Array]], evict_after_steps: int, step: int) -> dict[str, Array]:
    """A bucket's arrays after ``step``, as a whole file of that step has them.

    pieces: of the files of its chain, oldest first. Of what is said of a key, as a row or as a candidate, the
    last word counts; what no later step will see again is left out.
    """
    files = list(pieces)
    columns: dict[str, Array] = {name: np.concatenate([file[name] for file in files]) for name in files[0]}
    candidates: Array = columns.get(CANDIDATES, np.empty(0, np.uint64))
    said_of = np.concatenate([columns[KEYS], candidates])
    ages = [np.repeat(age, len(file[KEYS])) for age, file in enumerate(files)]
    ages += [np.repeat(age, len(file.get(CANDIDATES, ()))) for age, file in enumerate(files)]
    order = np.lexsort((np.concatenate(ages), said_of))
    keys = said_of[order]
    last = order[np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))]
    num_rows = len(columns[KEYS])
    rows, others = last[last < num_rows], last[last >= num_rows] - num_rows
    oldest = step + 1 - evict_after_steps if evict_after_steps else 0
    rows = rows[columns[SEEN][rows].astype(np.int64) >= oldest]
    if CANDIDATES in columns:
        others = others[columns[CANDIDATES_SEEN][others].astype(np.int64) >= oldest]
    return {name: column[others if name in OF_CANDIDATES else rows] for name, column in columns.items()}


def _check_fit(chunk: Chunk, arrays: Mapping[str, Array]) -> None:
    check_rows({name: (array.shape, array.dtype.name) for name, array in arrays.items()})
    for name, array in arrays.items():
        if not array.flags.c_contiguous or "/" in name:
            raise ValueError(f"{name!r} must be contiguous; no '/' in names")
    for name in (KEYS, CANDIDATES):
        if name in arrays:
            _check_keys(name, arrays[name].view(np.uint64), chunk.start)


def _check_keys(name: str, keys: Keys, bucket: int) -> None:
    smallest, largest = bounds(bucket, bucket + 1)
    if len(keys) and not (keys[0] >= smallest and keys[-1] <= largest and np.all(keys[:-1] < keys[1:])):
        raise ValueError(f"{name!r} must ascend, within bucket {bucket}: {smallest} to {largest}")
