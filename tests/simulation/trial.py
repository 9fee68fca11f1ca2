"""A child process in which slices are tried that are said to be deadly: see ``elasticflow.worker.trial``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from elasticflow.frameworks import Interrupted
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind
from elasticflow.worker.trial import Begin, TrialOutcome, Way

from .program import SmallLoaded

if TYPE_CHECKING:
    from .world import World


class SimTrial:
    """``Trial``: the child takes its time, and dies of what is deadly."""

    def __init__(
        self, world: World, begin: Begin, state: Vector, way: Way, moves: Callable[[], None]
    ) -> None:
        self._world, self._way, self._moves = world, way, moves
        assert begin.schedule is not None
        self._schedule = begin.schedule
        self._batches = SmallLoaded(begin.settings, world).batches(begin.schedule)
        self._batches.exclude(begin.excluded)

    def __enter__(self) -> SimTrial:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def outcome(self, tick: int, number: int, rows: tuple[int, ...] | None) -> TrialOutcome:
        world = self._world
        wake = world.system.file(self._way.wake_fd)
        self._moves()
        until_s = world.hub.now_s + world.shape.start_s + world.shape.slice_s
        while (left_s := until_s - world.hub.now_s) > 0:
            if world.hub.poll([wake], left_s) and self._way.urgent():
                self._moves()
                raise Interrupted("the master has something else to be done")
        self._moves()
        work = self._schedule.at(tick)
        tried = np.asarray(self._batches.rows(work, number) if rows is None else rows)
        if work.kind is Kind.EVALUATE:  # records to test with are counted anew, but are others
            tried = tried + world.shape.num_records
        if any(int(row) in world.shape.deadly for row in tried):
            return TrialOutcome(died="was killed by SIGSEGV")
        return TrialOutcome(raised=any(int(row) in world.shape.bad for row in tried))
