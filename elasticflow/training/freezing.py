"""In which epochs a parameter is trained: a pure function of a few numbers.

Its *toggles* are the epochs, counted from 0, with which it ceases, or begins again, to be trained, by turns:
``()`` is trained always, ``(0, 5)`` from epoch 5 on, ``(3,)`` in the first three.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

Toggles: TypeAlias = tuple[int, ...]


def toggles_of(trained: Sequence[bool]) -> Toggles:
    """Of what is trained in each epoch from 0 on, and after the last as in that."""
    before = [True, *trained]
    return tuple(epoch for epoch, (old, new) in enumerate(zip(before, trained, strict=False)) if old != new)


def is_trained(toggles: Toggles, epoch: int) -> bool:
    """Whether it is trained in this epoch."""
    return not toggles or bisect_right(toggles, epoch) % 2 == 0


def epochs_before(toggles: Toggles, epoch: int) -> int:
    """In how many epochs before this one it was trained."""
    bounds = [0, *(min(toggle, epoch) for toggle in toggles), epoch]
    return sum(stop - start for start, stop in zip(bounds[::2], bounds[1::2], strict=False))


def begins_late(toggles: Toggles) -> bool:
    """Whether there are values that it keeps for some time before it is trained."""
    return toggles[:1] == (0,)


def told(toggles: Toggles) -> str:
    """For people: when it is trained; "": always. Epochs are counted from 1 here."""
    if not toggles:
        return ""
    bounds = [0, *toggles]
    spans = [
        (start + 1, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=False) if stop > start
    ]
    words = [
        f"in epoch {start}" if start == stop else f"in epochs {start} to {stop}" for start, stop in spans
    ]
    words += [f"from epoch {bounds[-1] + 1} on"] if len(bounds) % 2 else []
    return f"trained {', '.join(words)}" if words else "never trained"
