"""64-bit numbers from ids and texts: the same everywhere, and in every version of Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elasticflow_ps import columns

Words = npt.NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GAMMA, _FIRST, _SECOND, _WORD = int(GAMMA), int(FIRST), int(SECOND), (1 << 64) - 1


def mixed(z: Words) -> Words:
    """Source: SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014). Changes ``z``."""
    z ^= z >> np.uint64(30)
    z *= FIRST
    z ^= z >> np.uint64(27)
    z *= SECOND
    z ^= z >> np.uint64(31)
    return z


def mix(seed: int, number: int) -> int:
    """63 bits that follow from two numbers, and look like nothing else that does."""
    z = (seed + (number + 1) * _GAMMA) & _WORD  # as ``mixed``, whose arrays cost ten times as much for one
    z = ((z ^ z >> 30) * _FIRST) & _WORD
    z = ((z ^ z >> 27) * _SECOND) & _WORD
    return (z ^ z >> 31) >> 1


def hash_ids(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """An id for each text or bytes string of an array, by its UTF-8 bytes: for ``data()``.

    The same everywhere and in every version of Python. FNV-1a over bytes, mixed. Trailing NUL characters
    do not count. Raises TypeError for what is not text.
    """
    array = np.asarray(values)
    if array.dtype.kind == "O" and all(isinstance(value, (str, bytes)) for value in array.flat):
        encoded = [value.encode() if isinstance(value, str) else value for value in array.flat]
        array = np.array(encoded, np.bytes_).reshape(array.shape)
    elif array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    if array.dtype.kind != "S":
        raise TypeError(
            f"hash_ids() takes strings alone; found an array of {array.dtype}. Numbers are ids as they are; "
            "what is missing needs a name, such as ''."
        )
    width = array.dtype.itemsize
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    starts = np.arange(array.size) * width
    return hash_texts(flat, starts, starts + width).reshape(array.shape)


def hash_texts(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """As ``hash_ids``: (n,) ids of the texts that lie in ``data`` from ``starts`` to ``stops``, (n,) each."""
    if columns.available():
        return columns.hash_texts(*map(np.ascontiguousarray, (data, starts, stops)))
    return hash_with_numpy(data, starts, stops)


def hash_with_numpy(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """As ``hash_texts``, some times slower."""
    stops = stops.copy()
    inside = np.flatnonzero(stops > starts)
    while len(inside := inside[data[stops[inside] - 1] == 0]):
        stops[inside] -= 1
        inside = inside[stops[inside] > starts[inside]]
    lengths = stops - starts
    order = np.argsort(-lengths, kind="stable")  # so those that have a byte at some place come first
    first = starts[order]
    counts = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")
    hashes = np.full(len(starts), 0xCBF29CE484222325, np.uint64)
    for place, count in enumerate(counts):
        longer = hashes[:count]
        longer ^= data[first[:count] + place]
        longer *= np.uint64(0x100000001B3)
    result = np.empty(len(starts), np.uint64)
    result[order] = mixed(hashes)
    return result.view(np.int64)
