"""What of a model gets gradients, which may change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Collection

from elasticflow.frameworks.base import trained_in
from elasticflow.step.layout import Layout, Rule


class Trained:
    """Numbers of the parameters, and of the tables, that get them in the epoch: all, before there is one."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._epoch = layout, -1
        self.parameters: Collection[int] = range(len(layout.of_rule(Rule.UPDATE)))
        self.tables: Collection[int] = range(len(layout.of_rule(Rule.ROWS)))

    def begin(self, epoch: int) -> bool:
        """Another epoch. Whether others are trained in it than before."""
        if epoch == self._epoch:
            return False
        self._epoch, before = epoch, (frozenset(self.parameters), frozenset(self.tables))
        self.parameters, self.tables = now = trained_in(self._layout, epoch)
        return now != before
