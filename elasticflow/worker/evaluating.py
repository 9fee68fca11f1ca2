"""What a slice of an evaluation comes to: its part of the cost, of each mean, and of what is summed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elasticflow.frameworks import Replica
from elasticflow.step.schedule import Work
from elasticflow.training.metrics import Sums, add, final, size_of
from elasticflow.training.standing import COST
from elasticflow.worker.batches import Batches

Report = npt.NDArray[np.float64]


def evaluated(replica: Replica, batches: Batches, work: Work, number: int, seed: int) -> tuple[Report, Sums]:
    """Of slice ``number``: what is to be added along the tree to those of the others. Raises as ``evaluate``.

    The report is the cost and the metrics; of several sources to test with, also those of each.
    """
    metrics = replica.metrics
    report, sums = np.zeros(1 + len(metrics.told)), np.zeros(size_of(metrics.summed))
    places = {prefix: 1 + (1 + len(metrics.names)) * n for n, prefix in enumerate(metrics.of_parts)}
    for batch, part, first, last in batches.test(work, number):
        count, values = last - first, replica.evaluate(batch, seed)
        report[0] += values[0] * (count / work.num_records)
        # Of a source beside others, its cost comes first.
        start, told = (places[part.prefix], values) if places else (1, values[1:])
        for place, value in enumerate(told, start):
            report[place] += value * (count / (part.last - part.first))
        measures = metrics.of_parts.get(part.prefix, metrics.measures)
        for measure, inputs in zip(measures, replica.measured, strict=True):
            add(measure, inputs, first - part.first, last - part.first, sums, number)
    return report, sums


def told(replica: Replica, report: Report, sums: Sums) -> dict[str, float]:
    """What people see, by name, of the sum over all slices."""
    values = dict(zip((COST, *replica.metrics.told), map(float, report), strict=True))
    for measure in replica.metrics.summed:
        values |= final(measure, sums)
    return values
