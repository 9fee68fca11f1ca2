"""How fast a run is believed to be by number of workers: from what was measured, and for the rest a guess."""

from __future__ import annotations

from collections.abc import Mapping

from elasticflow.scheduler.curves import Curve, curve

GUESS = 0.85
"""Twice the workers are taken to be ``2 * GUESS`` as fast, until they were measured."""


def sizes(most_workers: int) -> list[int]:
    """The numbers of workers that a run may have: powers of two."""
    return [1 << rung for rung in range(most_workers.bit_length())]


def believed(rates: Mapping[int, float], most_workers: int) -> Curve:
    """A curve of all sizes; those that were not measured follow from the next smaller that was, or larger.

    rates: steps a second by workers, at least one of them a power of two of at most ``most_workers``.
    """
    known = {size: rates[size] for size in sizes(most_workers) if size in rates}
    found: dict[int, float] = {}
    for size in sizes(most_workers):
        if size in known:
            found[size] = known[size]
        elif size // 2 in found:
            found[size] = found[size // 2] * 2 * GUESS
        else:
            found[size] = known[min(known)] * size / min(known)
    return curve(found)
