"""The losses of a run's steps, as a curve: pure, bounded, and without steps that were undone.

Its points are means, of a second at first, and of more the longer a run takes; when there are too many, those
of the older half are merged by twos. So it ends with what is newest, and covers all of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elasticflow.run.telling import LossPoint

MOST = 500
LEAST_S = 1.0
"""Of a point, at least."""
PART = 1 / 2000
"""So much of the time since the run's start a point is made of, if that is more."""


class LossCurve(msgspec.Struct, kw_only=True):
    """loss: the sum of those of the steps since ``step``, the last that is in a point; None: it is no number.

    newest: the last step that is in that sum. first: the last one before the run.
    """

    points: list[LossPoint] = []
    first: int = 0
    step: int = 0
    loss: float | None = 0.0
    newest: int = 0

    def add(
        self, step: int, loss: float | None, lr: float | None, workers: int, time_s: float, *, last: bool
    ) -> None:
        """Steps were made, up to this one. loss: their mean; None: not known. last: there are no more."""
        before = max(self.step, self.newest)
        if loss is not None and step > before:
            total = None if self.loss is None else self.loss + loss * (step - before)
            self.loss = total if total is not None and math.isfinite(total) else None
            self.newest = step
        due = last or not self.points or time_s >= self.points[-1].time_s + max(LEAST_S, time_s * PART)
        if self.newest <= self.step or not due:
            return
        mean = None if self.loss is None else self.loss / (self.newest - self.step)
        self.points.append(LossPoint(self.newest, time_s, mean, lr, workers))
        self.step, self.loss = self.newest, 0.0
        if len(self.points) > MOST:
            self.points = [*_merged(self.first, self.points[: MOST // 2]), *self.points[MOST // 2 :]]

    def begin(self, step: int) -> None:
        """The run begins, or goes on, with the version of this step: what came after it is undone."""
        self.points = [point for point in self.points if point.step <= step]
        self.step = self.newest = step
        self.loss = 0.0


def _merged(before: int, points: Sequence[LossPoint]) -> list[LossPoint]:
    """By twos; each is as long as the way to it from the one before."""
    merged = []
    for one, other in zip(points[::2], points[1::2], strict=True):
        merged.append(_mean(one, other, one.step - before, other.step - one.step))
        before = other.step
    return merged


def _mean(one: LossPoint, other: LossPoint, one_steps: int, other_steps: int) -> LossPoint:
    if one.loss is None or other.loss is None:
        return other
    mean = (one.loss * one_steps + other.loss * other_steps) / (one_steps + other_steps)
    return msgspec.structs.replace(other, loss=mean)
