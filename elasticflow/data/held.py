"""A hash of the records that a program keeps in memory: nobody trains on others than the run began with.

Where ``data()`` has them from only the program knows: often a file, which may change. What the first slice
gives tells of the first slice alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from fractions import Fraction

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
