"""Which points of a run's curves are committed, by what the run tells of itself: pure.

A point is drawn once its last step is in a checkpoint: from then on nothing undoes it, whoever dies and
wherever the run is resumed. Until then it is pending, and forgotten if a lost server has the run go back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from elasticflow.run.telling import Past, Status
from elasticflow.trackers.points import PointsBegun, TrackPoint, in_order

TRAIN, TEST = "train", "test"


class CurveFollowing:
    """written: those that were drawn before. begun: what was heard last by who drew them."""

    def __init__(self, written: Sequence[TrackPoint] = (), begun: PointsBegun | None = None) -> None:
        self._last = {kind: _last(kind, written) for kind in (TRAIN, TEST)}
        self._pending = {(point.kind, point.step): point for point in begun.pending} if begun else {}
        self._life = (begun.started_at, begun.generation, begun.master) if begun else None
        """Attempt, generation and master that were heard last."""

    def begun(self) -> PointsBegun | None:
        """What the next one has to know; None: nothing was heard."""
        return PointsBegun(*self._life, in_order([*self._pending.values()])) if self._life else None

    def undone_after(self, told: Past) -> int | None:
        """The step behind which what was drawn has to go, as another attempt begins there; None: nothing.

        That a run goes on from before its newest checkpoint is rare: that one was damaged.
        """
        other = self._life is not None and self._life[0] != told.started_at
        return told.start_step if other and told.start_step < max(self._last.values()) else None

    def heard(self, told: Past) -> list[TrackPoint]:
        """News of the run. Points that are committed, and were not before, in order."""
        undone = self.undone_after(told)
        if undone is not None:
            self._last = {kind: min(last, undone) for kind, last in self._last.items()}
        committed = max(told.checkpoint_step or 0, told.start_step)
        fresh = {(point.kind, point.step): point for point in points_of(told)}
        self._forget(told, min((step for kind, step in fresh if kind == TRAIN), default=None))
        for (kind, step), point in fresh.items():
            if step > self._last[kind]:
                self._pending[kind, step] = point
        due = [key for key in self._pending if key[1] <= committed]
        points = in_order([self._pending.pop(key) for key in due])
        points = [point for point in points if point.step > self._last[point.kind]]
        for point in points:
            self._last[point.kind] = point.step
        return points

    def _forget(self, told: Past, first: int | None) -> None:
        """What may be of steps that were undone. first: of the steps that the master remembers now.

        In one generation nothing is undone. After another one has begun the master knows what remains, but
        for what is too old to be told. Another master may know less.
        """
        before, self._life = self._life, _life(told)
        if before == self._life:
            return
        attempt, generation, master = self._life
        if before is None or before[0] != attempt:
            bound = -1  # a server may have been lost since it was heard, and all others then
        elif before[1] == generation:
            return
        else:
            bound = first - 1 if before[2] == master and first is not None else -1
        self._pending = {
            (kind, step): point for (kind, step), point in self._pending.items() if step <= bound
        }


def _life(told: Past) -> tuple[float, int, int]:
    if isinstance(told, Status):
        return told.started_at, told.generation, told.master.incarnation
    return told.started_at, 0, 0


def _last(kind: str, points: Sequence[TrackPoint]) -> int:
    return max((point.step for point in points if point.kind == kind), default=-1)


def points_of(told: Past) -> Iterator[TrackPoint]:
    """All that a run tells just then, committed or not."""
    times = [(point.step, told.started_at + point.time_s) for point in told.losses]
    for point, (_, at) in zip(told.losses, times, strict=True):
        values = {"train/loss": point.loss, "learning_rate": point.lr, "workers": point.workers}
        yield TrackPoint(point.step, TRAIN, at, _numbers(values))
    for evaluation in told.evaluations:
        step = evaluation["step"]
        later = [at for other, at in times if other >= step]
        values = {f"test/{name}": v for name, v in evaluation.items() if name not in ("epoch", "step")}
        at = later[0] if later else told.started_at + told.elapsed_s
        yield TrackPoint(step, TEST, at, _numbers({"epoch": evaluation["epoch"], **values}))


def _numbers(values: dict[str, float | None]) -> dict[str, float]:
    """Those that are one; JSON has null for others."""
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }
