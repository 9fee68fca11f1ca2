"""A process that is not to outlive the one that started it."""

from __future__ import annotations

import ctypes

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Has this process get a signal when its parent dies. If it has died already, none ever comes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
