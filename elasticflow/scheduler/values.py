"""What it is worth to be done at a time: all until the deadline, then less and less. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from elasticflow.errors import ConfigError

Softness = tuple[tuple[float, float], ...]
"""(seconds after the deadline, what it is worth to be done then), in order; in between it falls evenly, from
1 at the deadline. The last one counts for ever. Empty: a hard deadline, after which it is worth nothing."""
PER_SEGMENT = 4
"""So many moments of each piece are tried."""


def checked(soft: Sequence[tuple[float, float]]) -> Softness:
    """Raises ConfigError unless it rises in time and falls in value."""
    before_s, before = 0.0, 1.0
    for late_s, value in soft:
        if not (before_s < late_s < inf and 0.0 <= value <= before):
            raise ConfigError(
                f"a value of {value:g} at {late_s:g} s after the deadline: each has to be later than the one "
                "before, and of no more value, which is 1 at the deadline."
            )
        before_s, before = late_s, value
    return tuple((float(late_s), float(value)) for late_s, value in soft)


def value_at(soft: Softness, late_s: float) -> float:
    """Of 1."""
    if late_s <= 0.0:
        return 1.0
    before_s, before = 0.0, 1.0
    for end_s, value in soft:
        if late_s <= end_s:
            return before + (value - before) * (late_s - before_s) / (end_s - before_s)
        before_s, before = end_s, value
    return soft[-1][1] if soft else 0.0


def aims_s(deadline_s: float, soft: Softness) -> list[float]:
    """Moments to be done by that are worth something, the best first: the deadline, and some after it."""
    found, before_s = [deadline_s], 0.0
    for end_s, _ in soft:
        found += [
            deadline_s + late_s
            for part in range(1, PER_SEGMENT + 1)
            if value_at(soft, late_s := before_s + (end_s - before_s) * part / PER_SEGMENT) > 0.0
        ]
        before_s = end_s
    return found
