"""Columns of records in C, ``columns.c``: as ``native.py``, of which it needs nothing.

The bits are those of NumPy, which whoever calls this has at hand. Arrays must be contiguous, and numbers in
range.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticflow.process.addresses import address_of
from elasticflow.process.compiled import library

Array: TypeAlias = "npt.NDArray[Any]"
Rows: TypeAlias = "npt.NDArray[np.int64]"

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES = {
    "hash_texts": (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER),
    "move_records": (_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER),
    "move_ragged": (_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER),
    "pad_ragged": (_POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE, ctypes.c_int, _POINTER),
}


_lib = library(Path(__file__).parent)
if _lib is not None:
    for _name, _types in _SIGNATURES.items():
        _function = getattr(_lib, _name)
        _function.argtypes, _function.restype = _types, None


def available() -> bool:
    """Whether it is there: a C compiler was when this was installed."""
    return _lib is not None


def takes(array: Array, *numbers: Array) -> bool:
    """Whether C can work on these: plain memory, and numbers of int64."""
    plain = not array.dtype.hasobject and all(each.flags.c_contiguous for each in (array, *numbers))
    return _lib is not None and plain and all(each.dtype == np.int64 for each in numbers)


def hash_texts(data: npt.NDArray[np.uint8], starts: Rows, stops: Rows) -> Rows:
    """See ``elasticflow.hashing.hash_texts``."""
    found = np.empty(len(starts), np.int64)
    _call("hash_texts", data, starts, stops, len(starts), found)
    return found


def move_records(source: Array, numbers: Rows, places: Rows, target: Array) -> None:
    """target[places] = source[numbers]"""
    _call("move_records", source, _width(source), numbers, places, len(numbers), target)


def move_ragged(
    values: Array, starts: Rows, numbers: Rows, places: Rows, target: Array, target_starts: Rows
) -> None:
    """Records ``numbers`` to ``places``, where ``target`` has records that begin at ``target_starts``."""
    _call("move_ragged", values, _width(values), starts, numbers, places, len(numbers), target, target_starts)


def pad_ragged(values: Array, starts: Rows, most: int, left: bool, target: Array) -> None:
    """Puts records, of which ``most`` elements count, into the rows of ``target``; the rest of it stays."""
    size = len(starts) - 1
    _call("pad_ragged", values, _width(values), starts, size, target.shape[1], most, left, target)


def _width(values: Array) -> int:
    return values.dtype.itemsize * math.prod(values.shape[1:])


def _call(name: str, *arguments: Any) -> None:
    getattr(_lib, name)(*[address_of(each) if isinstance(each, np.ndarray) else each for each in arguments])
