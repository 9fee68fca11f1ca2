"""What slices have reported of ticks: the losses of steps, and what evaluations came to."""

from __future__ import annotations

import math

import numpy as np

from elasticflow.step.layout import Rule
from elasticflow.step.schedule import Kind
from elasticflow.training.metrics import Compute, Sums, final
from elasticflow.training.standing import COST
from elasticflow.wire.messages import Assignment
from elasticflow_ps.decisions import Evaluations
from elasticflow_ps.store import Sum


class Measured:
    """By one generation of one server. evaluations: all that its process knows of; more are added.

    compute: what metrics that are objects come to.
    """

    def __init__(self, assignment: Assignment, evaluations: Evaluations, compute: Compute) -> None:
        self._spec, self._schedule = assignment.spec, assignment.schedule
        self._compute = compute
        self._losses: list[float] = []
        self.evaluations = evaluations
        self.lr: float | None = None
        """Of the last step that was taken."""

    def take(self, tick: int, kind: Kind, root: Sum, lr: float | None = None) -> bool:
        """What there is of it in a sum of all slices. Whether an evaluation is known by it."""
        sums: Sums | None = None
        if kind is Kind.TRAIN:
            self.lr = self._spec.optimizer.lr if lr is None else lr
        for array, span in zip(root.arrays, root.spans, strict=True):
            if span.rule is Rule.REPORT and kind is Kind.TRAIN:
                if not (self._schedule.rounds and math.isnan(array[0])):  # of a round that tells no cost
                    self._losses.append(float(array[0]))
            elif span.rule is Rule.REPORT:
                sums = _measures_of(root) if sums is None else sums
                values = dict(zip(("", *self._spec.metrics), map(float, array), strict=False))  # padded
                for measure in self._spec.measures:
                    values |= final(measure, sums, self._compute)
                self.evaluations[tick] = tuple(values.values())
        return sums is not None

    def values(self, tick: int) -> dict[str, float]:
        """What an evaluation came to, by name."""
        return dict(zip((COST, *self._spec.metrics), self.evaluations[tick], strict=False))

    def loss(self) -> float | None:
        """The mean of those since the last call; None: there were none."""
        losses, self._losses = self._losses, []
        return sum(losses) / len(losses) if losses else None


def _measures_of(root: Sum) -> Sums:
    measured = [a for a, span in zip(root.arrays, root.spans, strict=True) if span.rule is Rule.MEASURE]
    return np.concatenate(measured or [np.empty(0)], dtype=np.float64)
