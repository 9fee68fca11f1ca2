"""For tests: memory is overwritten as soon as its loan is said to have ended.

Whoever lends memory, to a socket, another process or a snapshot, knows of a word that ends the loan, and uses
the memory again after that. If that word comes too early, somebody may read a mixture, which happens rarely
and is seldom seen. With ``ELASTICFLOW_POISON=1`` it is seen: from the word to the next use there are NaNs in
that memory. All loans are listed in docs/design.md.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

ON = os.environ.get("ELASTICFLOW_POISON") == "1"


def poison(*arrays: NDArray[Any]) -> None:
    """Makes all numbers in contiguous arrays NaN, or else -1. Only if it is ``ON``."""
    if ON:
        for array in arrays:
            array.reshape(-1).view(np.uint8).fill(0xFF)
