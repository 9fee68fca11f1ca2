"""A hash of the records that a program keeps in memory: nobody trains on others than the run began with.

Where ``data()`` has them from only the program knows: often a file, which may change. What the first slice
gives tells of the first slice alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import xxhash

from elasticflow.data.source import Array, Source

PIECE_BYTES = 1 << 22
MOST_BYTES, MOST_MAPPED_BYTES = 4 << 30, 64 << 20
"""Of an array so many bytes are hashed, in pieces from all over it. Of one that is mapped fewer: they are
read for that, perhaps from far away."""


def held_hash(sources: Iterable[Source]) -> str:
    """Of all arrays that they keep; "": they keep none. Takes a tenth of a second a GB, about."""
    digest, holds = xxhash.xxh3_128(), False
    for source in sources:
        for name, array in source.held():
            holds = True
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            for piece in _pieces(array):
                digest.update(piece.view(np.uint8).data)
    return digest.hexdigest() if holds else ""


def kept_by(dataset: Any) -> Iterator[tuple[str, Array]]:
    """Arrays, tensors and lists of numbers in which a dataset keeps something of each of its records.

    So do most that are written by hand, torch's ``TensorDataset``, ``Subset`` and ``ConcatDataset``, and
    torchvision's; nobody knows what else an object keeps, nor whether it is a record's.
    """
    kept = getattr(dataset, "__dict__", {})
    for name in sorted(map(str, kept)):
        value = kept.get(name)
        for place, each in enumerate(value if isinstance(value, tuple) else (value,)):
            if (array := _of_records(each, len(dataset))) is not None:
                yield f"{name} {place}", array
    for name, inner in (("dataset", [kept.get("dataset")]), ("datasets", kept.get("datasets"))):
        for each in inner if isinstance(inner, list) else ():
            if hasattr(each, "__len__") and each is not dataset:
                yield from ((f"{name}.{of}", array) for of, array in kept_by(each))


def _of_records(value: Any, count: int) -> Array | None:
    """As an array, if it has so many values, or rows, of plain numbers."""
    is_array = isinstance(value, np.ndarray) or type(value).__module__.partition(".")[0] == "torch"
    if not is_array and not (isinstance(value, list) and value and isinstance(value[0], int | float)):
        return None
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001  (a tensor on a device, or of a type that NumPy does not know)
        return None
    return array if array.ndim and len(array) == count and array.dtype.kind in "biufcmM" else None


def _pieces(array: Array) -> Iterator[Array]:
    """One-dimensional, one after the other in memory: all, or some, the last one among them."""
    if not array.nbytes:
        return
    rows = -(-PIECE_BYTES * len(array) // array.nbytes)
    count, most = -(-len(array) // rows), MOST_MAPPED_BYTES if _is_mapped(array) else MOST_BYTES
    for number in _spread(count, max(2, most // PIECE_BYTES)):
        yield np.ascontiguousarray(array[number * rows : (number + 1) * rows]).reshape(-1)


def _spread(count: int, most: int) -> Iterable[int]:
    """So many of ``range(count)``, evenly, the first and the last among them."""
    if count <= most:
        return range(count)
    return [int(Fraction(place * (count - 1), most - 1)) for place in range(most)]


def _is_mapped(array: object) -> bool:
    """Whether its memory is a file's."""
    while array is not None:
        if isinstance(array, mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False
