"""A worker's slices of a tick: computed node by node of the tree, added up, and pushed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from elasticflow.frameworks import Interrupted
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.step.slices import Node
from elasticflow.worker.computing import Computing, Filling
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.present import Present
from elasticflow.worker.strategy import Outgoing, Position, Strategy
from elasticflow.worker.sums import Sums, Total, add
from elasticflow.worker.timeline import Timeline

RECENT = 9
"""So many measurements say how fast a worker is."""


class Adding:
    """Of one worker. usual_s: seconds a slice took lately: the median, since one process stopped for a minute
    tells little.

    is_urgent: whether the master has something else to be done, for which no other slice is begun.
    """

    def __init__(
        self,
        loaded: Loaded,
        schedule: Schedule,
        computing: Computing,
        strategy: Strategy,
        timeline: Timeline,
        present: Present,
        is_urgent: Callable[[], bool],
    ) -> None:
        self._schedule, self._is_urgent = schedule, is_urgent
        self._loaded, self._computing, self._strategy = loaded, computing, strategy
        self._timeline, self._present = timeline, present
        self._slice_s = self.usual_s = 0.0
        self._recent_s: deque[float] = deque(maxlen=RECENT)

    def push(self, position: Position, work: Work, nodes: Sequence[Node], *, asks: bool) -> bool:
        """Whether the servers were asked for the next version, with the last push; if it ``asks``."""
        lr = self._loaded.learning_rate(work, position.tuning, self._schedule.total_steps)
        asked = False
        for node in nodes:
            since_s = time.monotonic()
            last = asks and node is nodes[-1]
            totals, outgoing = self._add_up(position, work, node, lr, last)
            num_slices = node.stop - node.first
            now_s = self._timeline.add(
                "computing", work.tick, since_s, again=work.tick < self._present.redo_until
            )
            slice_s = (now_s - since_s) / num_slices
            self._timeline.num_slices += num_slices
            self._slice_s = slice_s
            self._recent_s.append(slice_s)
            self.usual_s = median(self._recent_s)
            for number, (part, total) in enumerate(totals):
                self._present.done.update(range(part.first, part.stop))
                asked = last and number == len(totals) - 1
                self._strategy.push(position, part, total, lr=lr, slice_s=slice_s, last=asked)
            if outgoing:
                self._present.done.update(range(node.first, node.stop))
                asked = last
                outgoing.finish(slice_s)
        return asked

    def _add_up(
        self, position: Position, work: Work, node: Node, lr: float | None, last: bool
    ) -> tuple[list[Total], Outgoing | None]:
        """Computes a node's slices. What is to be pushed now, or to be finished as its push has begun.

        Raises Interrupted.
        """
        apart = self._computing.adds_apart(work)
        join = (
            self._computing.replica.add
            if apart
            else partial(add, kind=work.kind, epoch=work.epoch, stage=work.stage)
        )
        sums = Sums(node, work.kind, self._strategy.give_back, self._strategy.rounding, join)
        number = node.stop - 1
        try:
            for earlier in range(node.first, number):
                self._go_on()
                self._computing.take(sums, work, earlier)
            self._go_on()
            parts = sums.all_but_last()
            whole = work.kind is not Kind.TRAIN or self._computing.skips or not self._strategy.streams
            if parts is None or whole or self._computing.audit.picks(work, number):
                self._computing.take(sums, work, number)
                return self._computing.delivered(work, sums.totals), None
            return self._stream(position, work, node, lr, last, sums, parts)
        except Interrupted:
            for _, vector in sums.totals:
                if vector is not None:
                    self._strategy.give_back(vector)
            raise

    def _go_on(self) -> None:
        """With the next slice. A slow worker may have many left when nobody needs them any more."""
        if self._is_urgent():
            raise Interrupted("the master has something else to be done")

    def _stream(
        self,
        position: Position,
        work: Work,
        node: Node,
        lr: float | None,
        last: bool,
        sums: Sums,
        parts: list[Vector],
    ) -> tuple[list[Total], Outgoing | None]:
        """Computes a node's last slice, and sends of the sum over all of them what is final by then."""
        # What is rounded is rounded before it is added: it needs a vector of its own.
        apart, number = not parts or self._strategy.rounding is not None, node.stop - 1
        if apart:
            parts = [*parts, self._strategy.spare()]
        reads_on = partial(self._computing.fetch_ahead, work, position.slices_of(self._present.name), node)
        lefts = parts[:-1] if self._computing.adds_apart(work) else []
        pushed = parts[:1] if lefts else parts
        outgoing = self._strategy.begin(position, node, pushed, lr=lr, slice_s=self._slice_s, last=last)
        filled: bool | None = False
        try:
            filled = self._computing.slice(
                work, number, parts[-1], Filling(not apart, outgoing, lefts, reads_on if last else None)
            )
        except Interrupted:
            if outgoing.begun:  # by a lookup that the backward pass does again
                # Parts of these may be on their way, and no word will say when they have arrived: they are
                # not filled again.
                sums.totals.clear()
            raise
        finally:
            if apart and not filled and not outgoing.begun:
                self._strategy.give_back(parts[-1])
        if filled:
            for part in parts[len(pushed) :]:
                self._strategy.give_back(part)
            return [], outgoing
        if filled is not None:
            sums.take(number, None)
        return self._computing.delivered(work, sums.totals), None
