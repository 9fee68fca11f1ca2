from __future__ import annotations

import random

import numpy as np

from elasticflow.step.layout import ALIGN_BYTES
from elasticflow_ps.arena import BLOCK_BYTES, SMALL_BYTES, Arena


def test_arrays_are_aligned_and_share_no_byte() -> None:
    rng, arena = random.Random(1), Arena()
    sizes = [1, SMALL_BYTES - 1, SMALL_BYTES, BLOCK_BYTES + 1]
    sizes += [rng.randrange(1, 4 << 20) for _ in range(60)]
    arrays = [arena.empty(size)[0] for size in sizes]
    for number, (size, array) in enumerate(zip(sizes, arrays, strict=True)):
        assert array.nbytes == size and array.ctypes.data % ALIGN_BYTES == 0
        array.fill(number)
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_an_array_outlives_the_arena() -> None:
    array = Arena().empty(SMALL_BYTES)[0].view(np.float32)
    array.fill(3.0)
    assert float(array.sum()) == 3.0 * array.size
