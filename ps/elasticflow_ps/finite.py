"""Numbers that are none: NaN, and what is infinite.

Gradients and updates that hold such numbers are never made part of a version, see ``on_nan`` in
``conf/local.yaml``. A parameter or buffer that was infinite before may stay so, as masks are, and so may one
that was NaN, which may stand for what is not set yet.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from elasticflow.step.layout import Array, Layout, Rule
from elasticflow_ps import native
from elasticflow_ps.parcels import Span


def all_finite(values: Array) -> bool:
    """Whether all elements are numbers, none NaN or infinite."""
    return native.all_finite(values) if native.takes(values) else bool(np.isfinite(values).all())


def are_numbers(after: Array, before: Array) -> bool:
    """Whether no element is NaN or infinite, but those that were so before."""
    if np.isfinite(after).all():
        return True
    with np.errstate(invalid="ignore"):
        return bool((np.isfinite(after) | (after == before) | np.isnan(before)).all())


def first_odd(layout: Layout, pieces: Iterable[tuple[Span, Array]]) -> str:
    """The first tensor of the layout with an element, in these pieces, that is no number; or ""."""
    found: list[tuple[int, int]] = []
    for span, array in pieces:
        if span.rule in (Rule.UPDATE, Rule.MEAN) and not all_finite(array):
            found.append((span.group, span.start + int(np.argmin(np.isfinite(array)))))
    for entry in layout.entries:
        group, start, stop = layout.region(entry)
        if any(number == group and start <= place < stop for number, place in found):
            return entry.name
    return ""
