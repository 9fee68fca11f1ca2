"""Norms of gradients, and what they are clipped by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elasticflow.step.layout import Array, aligned_empty
from elasticflow_ps import native
from elasticflow_ps.kernel import BLOCK_BYTES


def squared_norm(grad: Array) -> float:
    """Sum of the squares of a chunk, (n,), in float64.

    Equal bytes give equal bits wherever they lie: squares are added, block by block and element by element,
    to an aligned block, which is summed at the end. (BLAS's ``dot`` and reductions over the chunk itself may
    group terms by alignment, threads or processor.)
    """
    squares = Squares(grad.size)
    squares.add(grad)
    return squares.total


class Squares:
    """The sum of the squares of so many elements, which come piece by piece: see ``squared_norm``."""

    def __init__(self, size: int) -> None:
        self._sums = aligned_empty(8 * max(1, min(size, BLOCK_BYTES // 8))).view(np.float64)
        self._sums.fill(0)

    def add(self, values: Array) -> None:
        """All pieces but the last are of a multiple of ``BLOCK_BYTES`` bytes."""
        (native.add_squares if native.takes(values) else add_squares_with_numpy)(values, self._sums)

    @property
    def total(self) -> float:
        with np.errstate(all="ignore"):
            return float(np.add.reduce(self._sums))


def add_squares_with_numpy(grad: Array, sums: npt.NDArray[np.float64]) -> None:
    """``native.add_squares`` where C cannot, and what its bits have to be."""
    squares = aligned_empty(sums.nbytes).view(np.float64)
    with np.errstate(all="ignore"):
        for start in range(0, grad.size, sums.size):
            block = grad[start : start + sums.size]
            s, total = squares[: block.size], sums[: block.size]
            np.copyto(s, block)
            np.multiply(s, s, out=s)
            np.add(total, s, out=total)


def clip_scale(total_norm: float, clip_norm: float) -> float:
    """The factor ``torch.nn.utils.clip_grad_norm_`` puts on gradients of this norm; at most 1.

    A norm that is NaN gives NaN, as in torch.
    """
    return min(clip_norm / (total_norm + 1e-6), 1.0)  # in this order min passes NaN on
