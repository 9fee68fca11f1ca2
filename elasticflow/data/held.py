"""A hash of the records that a program keeps in memory: nobody trains on others than the run began with.

Where ``data()`` has them from only the program knows: often a file, which may change. What the first slice
gives tells of the first slice alone.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
    """Of all arrays that they keep; "": they keep none. Takes 50 ms a GB, about."""
    digest, holds = xxhash.xxh3_128(), False
    for source in sources:
        for name, array in source.held():
            holds = True
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            for piece in _pieces(array):
                digest.update(piece.view(np.uint8).data)
    return digest.hexdigest() if holds else ""


def kept_by(dataset: Any) -> Iterator[tuple[str, Array]]:
    """What PyTorch's own datasets keep: tensors, and which records of another they have.

    Of others nobody knows what of an object is records', and what a cache, or not filled yet.
    """
    if "torch" not in sys.modules:
        return
    import torch
    from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

    inner: Iterable[Any] = ()
    if isinstance(dataset, torch.Tensor | np.ndarray):
        with suppress(TypeError, RuntimeError):  # on a device, or of a type that NumPy does not know
            yield "tensor", np.asarray(dataset)
    elif isinstance(dataset, TensorDataset):
        inner = dataset.tensors
    elif isinstance(dataset, Subset):
        yield "indices", np.asarray(dataset.indices)
        inner = (dataset.dataset,)
    elif isinstance(dataset, ConcatDataset | StackDataset):
        inner = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
    for each in inner:
        yield from kept_by(each)


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
