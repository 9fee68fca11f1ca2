"""Float32 made smaller: rounded to bfloat16, in C or with NumPy, to the same bits; or its largest elements.

bfloat16 is the upper half of a float32, rounded to nearest, ties to even: NaN stays NaN, and what is too
large becomes infinite. NumPy does not know it: it travels as uint16.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elasticflow.step.layout import Array
from elasticflow_ps import native

Values = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
Indices = npt.NDArray[np.int32]

MAGNITUDE, INFINITY, QUIET = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x400000)


def to_bfloat16(values: Array) -> Halves:
    """All of them rounded, (n,)."""
    if not native.rounds(values):
        return to_bfloat16_with_numpy(values)
    packed = np.empty(values.size, np.uint16)
    native.to_bfloat16(values, packed)
    return packed


def to_bfloat16_with_numpy(values: Array) -> Halves:
    """``to_bfloat16``, for any array."""
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    is_nan = (bits & MAGNITUDE) > INFINITY
    packed: Halves = (np.where(is_nan, bits | QUIET, nearest) >> np.uint32(16)).astype(np.uint16)
    return packed


def from_bfloat16(packed: Halves, values: Array) -> None:
    """Writes the same numbers to ``values``, (n,)."""
    if native.rounds(packed, values):
        native.from_bfloat16(packed, values)
    else:
        np.left_shift(packed, np.uint32(16), out=values.view(np.uint32), dtype=np.uint32)


def round_to_bfloat16(values: Array) -> None:
    """In place."""
    if native.rounds(values):
        native.round_to_bfloat16(values)
    else:
        from_bfloat16(to_bfloat16_with_numpy(values), values)


def take_largest(values: Values, k: int) -> tuple[Indices, Values]:
    """Where the ``k`` elements of the largest magnitude were, ascending, and what: 0 is left in their places.

    Of elements of the same magnitude the first are taken, and NaN before all others. 1 <= k <= n.
    """
    magnitudes = values.view(np.uint32) & MAGNITUDE
    least = np.partition(magnitudes, len(values) - k)[len(values) - k]
    above = np.flatnonzero(magnitudes > least)
    equal = np.flatnonzero(magnitudes == least)[: k - len(above)]
    indices = np.sort(np.concatenate([above, equal])).astype(np.int32)
    taken = values[indices]
    values[indices] = 0
    return indices, taken
