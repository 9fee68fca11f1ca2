"""The updates in C, ``native.c``: there if a C compiler was when this was installed.

Without them the servers use NumPy, which gives the same bits several times slower.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticflow.layout import Array

RULES = ("sgd", "momentum", "adam", "amsgrad", "adagrad", "ftrl")
DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float64))
MAX_SLOTS, MAX_NUMBERS = 3, 8

_UPDATE = struct.Struct(f"{3 + 2 * MAX_SLOTS}P{MAX_NUMBERS}d")
"""``Update`` in C: where the arrays lie, and the numbers."""


class _ArrayInterface(ctypes.Structure):
    """What ``__array_struct__`` points to: NumPy's array interface in C, up to the address."""

    _fields_ = [
        ("two", ctypes.c_int),
        ("nd", ctypes.c_int),
        ("typekind", ctypes.c_char),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def _address(array: Array) -> int:
    """``array.ctypes.data`` in half the time."""
    capsule = array.__array_struct__  # owns what it points to
    address: int = _ArrayInterface.from_address(_pointer(capsule, None)).data
    return address


def _library() -> ctypes.CDLL | None:
    spec = PathFinder.find_spec("_native", [str(Path(__file__).parent)])
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        fits: bool = library.update_bytes_float32() == _UPDATE.size
    except (OSError, AttributeError):  # built on another system, or of another source
        return None
    return library if fits else None


_lib = _library()
available = _lib is not None
"""Whether the updates in C are there."""

_rules: dict[tuple[str, np.dtype[Any]], Any] = {}
_add_squares: dict[np.dtype[Any], Any] = {}
if _lib is not None:
    for _dtype in DTYPES:
        for _rule in RULES:
            _rules[_rule, _dtype] = _function = _lib[f"{_rule}_{_dtype}"]
            _function.argtypes, _function.restype = (ctypes.c_char_p, ctypes.c_size_t), None
        _add_squares[_dtype] = _function = _lib[f"add_squares_{_dtype}"]
        _function.argtypes = (ctypes.c_void_p, ctypes.c_size_t) * 2
        _function.restype = None
    _lib.set_threads.argtypes, _lib.set_threads.restype = (ctypes.c_long,), ctypes.c_long


def set_threads(threads: int) -> int:
    """Shares each large span among so many threads of this process, at first one; the bits are the same.

    Returns how many there are: fewer if the system allows no more, one without ``available``. For the start
    of a process: after a fork the threads are the parent's, and the child does the work alone.
    """
    return 1 if _lib is None else int(_lib.set_threads(threads))


def takes(*arrays: Array) -> bool:
    """Whether C can work on these arrays: of float32 or float64, contiguous, at any address."""
    return available and all(array.dtype in DTYPES and array.flags.c_contiguous for array in arrays)


def update(
    rule: str,
    params: Array,
    grad: Array,
    out: Array,
    before: Sequence[Array],
    after: Sequence[Array],
    numbers: Sequence[float],
) -> None:
    """``Kernel.apply_with_numpy`` in C, for arrays that it ``takes``. rule: one of ``RULES``."""
    none = (0,) * (MAX_SLOTS - len(before))
    to = [_address(slot) for slot in after]
    places = [at if old is new else _address(old) for old, new, at in zip(before, after, to, strict=True)]
    job = _UPDATE.pack(
        _address(params),
        _address(grad),
        _address(out),
        *places,
        *none,
        *to,
        *none,
        *numbers,
        *(0,) * (MAX_NUMBERS - len(numbers)),
    )
    _rules[rule, params.dtype](job, params.size)


def add_squares(grad: Array, sums: npt.NDArray[np.float64]) -> None:
    """Adds the square of element i to ``sums[i % len(sums)]``, in the order of i."""
    _add_squares[grad.dtype](_address(grad), grad.size, _address(sums), sums.size)
