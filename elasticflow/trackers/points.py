"""Points of a run's curves, and the files in which those that are committed, and those to come, are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from elasticflow.process.decoding import from_json
from elasticflow.run.folder import publish, read_bounded
from elasticflow.run.tracks import TrackDir


class TrackPoint(msgspec.Struct, frozen=True):
    """What was measured up to a step, by name. kind: train or test, of each one a step. at: since 1970."""

    step: int
    kind: str
    at: float
    values: dict[str, float]


class PointsBegun(msgspec.Struct, frozen=True):
    """What was heard of a run last. started_at: of its attempt. pending: what was not committed by then."""

    started_at: float
    generation: int
    master: int
    pending: list[TrackPoint]


def in_order(points: Sequence[TrackPoint]) -> list[TrackPoint]:
    """By steps; of one step, training comes first."""
    return sorted(points, key=lambda point: (point.step, point.kind != "train"))


def read_points(folder: TrackDir) -> list[TrackPoint]:
    """Those that were drawn; none if that cannot be read: then they are drawn anew."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return from_json(read_bounded(folder.points), list[TrackPoint])
    return []


def read_begun(folder: TrackDir) -> PointsBegun | None:
    """None: nothing was heard."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return from_json(read_bounded(folder.pending), PointsBegun)
    return None


def write_points(folder: TrackDir, points: Sequence[TrackPoint]) -> None:
    """Raises OSError."""
    publish(folder.points, points, durable=False)


def write_begun(folder: TrackDir, begun: PointsBegun) -> None:
    """Raises OSError."""
    publish(folder.pending, begun, durable=False)
