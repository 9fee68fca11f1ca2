"""What a worker finds out about numbers that are not finite: NaN, and what is infinite."""

from __future__ import annotations

import numpy as np

from elasticflow.step.layout import Rule, Vector
from elasticflow.training.freezing import is_trained


def odd_gradient(vector: Vector, epoch: int) -> str:
    """The first parameter or table, in the layout's order, with a gradient that is not finite; or "".

    epoch: in which it was computed.
    """
    tables = iter(vector.rows)
    for entry in vector.layout.entries:
        if entry.rule is Rule.ROWS:
            gradient = next(tables).values
        elif entry.rule is Rule.UPDATE and is_trained(entry.toggles, epoch):
            gradient = vector.tensors([entry])[0]  # type: ignore[assignment]
        else:
            continue
        if not np.isfinite(gradient).all():
            return entry.name
    return ""
