"""Whether a program's cost is a sum over its records, where it is to be their mean."""

from __future__ import annotations

import numpy as np

from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind
from elasticflow.worker.loaded import Loaded

TIMES, WITHIN = 8, 0.1
"""Records are given so many times over, and a cost that is so nearly as many times as large is a sum."""
_SUMMED = (
    "forward() seems to return a sum over its records: the same ones {0} times over cost {0} times as much. "
    "It is to be their mean: what a sum trains follows from how many records a slice has"
)


def looks_summed(loaded: Loaded) -> str:
    """A warning, if the same records given several times over cost as many times as much; "" if not.

    As many records as a slice has are computed; where that cannot be, nothing is said.
    """
    if loaded.program.encode is not None or loaded.program.loop is not None:
        return ""
    batches, work = loaded.batches(loaded.schedule), loaded.schedule.at(0)
    rows, out = batches.rows(work, 0), Vector(loaded.replica.layout)
    some, costs = rows[: max(2, len(rows) // TIMES)], list[float]()
    try:
        for times in (1, TIMES):
            loaded.replica.compute(batches.of_rows(Kind.TRAIN, np.tile(some, times)), 0, 1.0, out)
            costs.append(float(out.groups[-1][0]))
    except Exception:  # noqa: BLE001  (a source that gives no record twice, say)
        return ""
    once, often = costs
    is_sum = once and abs(often / once / TIMES - 1) <= WITHIN  # not if they are no numbers
    return _SUMMED.format(TIMES) if is_sum else ""
