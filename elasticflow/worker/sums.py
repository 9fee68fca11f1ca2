"""Slices summed along the tree, on the worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from elasticflow.step.layout import Rule, Vector
from elasticflow.step.schedule import Kind
from elasticflow.step.slices import Node

Total = tuple[Node, Vector | None]
"""A node and the sum over its slices; None if those hold no records."""


def add(left: Vector, right: Vector, kind: Kind, epoch: int = 0, stage: int = 0) -> None:
    """left := the sum of two sibling nodes, in what is pushed for a tick: see ``Group.is_pushed``."""
    for group, mine, other in zip(left.layout.groups, left.groups, right.groups, strict=True):
        if group.is_pushed(kind, epoch, stage) and group.rule is not Rule.FIRST:
            np.add(mine, other, out=mine)
    if kind is Kind.TRAIN:
        left.rows = [mine.plus(other) for mine, other in zip(left.rows, right.rows, strict=True)]


class Sums:
    """The sum over a node's slices, which are computed one after the other, from left to right.

    totals: what there is by now, in as few nodes as those slices make up that could be computed.
    release: takes back a vector that is no longer needed. rounding: see ``Strategy.rounding``. join: puts the
    sum of two siblings into the first's vector.
    """

    def __init__(
        self,
        node: Node,
        kind: Kind,
        release: Callable[[Vector], None],
        rounding: Callable[[Vector], None] | None = None,
        join: Callable[[Vector, Vector], None] | None = None,
    ) -> None:
        self._join = join or partial(add, kind=kind)
        self.totals: list[Total] = []
        self._node, self._release = node, release
        self._rounding = rounding if kind is Kind.TRAIN else None

    def onto(self, number: int) -> Vector | None:
        """What slice ``number`` is to be added to while it is computed: its left sibling's sum, if any.

        None if the slice's gradient is to be rounded before.
        """
        if self._rounding:
            return None
        if number % 2 and number > self._node.first and self.totals:
            node, vector = self.totals[-1]
            return vector if node == Node(0, number - 1) else None
        return None

    def take(self, number: int, vector: Vector | None) -> None:
        """Slice ``number`` is computed, into ``vector``, maybe its left sibling's; None: no records."""
        if vector is not None and self._rounding:
            self._rounding(vector)
        self.totals.append((Node(0, number), vector))
        while len(self.totals) > 1 and self._may_join(*self.totals[-2:]):
            (left, first), (_, second) = self.totals[-2:]
            if first is not None and second is not None and first is not second:
                self._join(first, second)
                if self._rounding:
                    self._rounding(first)
                self._release(second)
            self.totals[-2:] = [(left.parent, second if first is None else first)]

    def _may_join(self, left: Total, right: Total) -> bool:
        return left[0].sibling == right[0] and self._node.covers(left[0].parent) and left[0] < right[0]

    def all_but_last(self) -> list[Vector] | None:
        """The sums over all slices but the last; None if one is missing, or there is one without records."""
        vectors = [vector for _, vector in self.totals if vector is not None]
        slices = sum(node.stop - node.first for node, _ in self.totals)
        whole = len(vectors) == len(self.totals) and slices == self._node.stop - self._node.first - 1
        return vectors if whole else None
