"""A program's loop as a replica has it: what of it is part of a version, and the slice that comes next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticflow.frameworks.loop_plan import Gave, total_name
from elasticflow.frameworks.looping import FIRST, Looping
from elasticflow.frameworks.session import SlicePart
from elasticflow.step.layout import Array, Rule, Vector
from elasticflow.step.schedule import Work


class ReplicaLoop:
    """state: the version that the replica computes from.

    kept: tensors of the model that the loop keeps, by name. What it makes of them is not the version's yet.
    """

    def __init__(self, looping: Looping, state: Vector, kept: Mapping[str, Any]) -> None:
        assert looping.plan
        self.kept = kept
        self._looping, self._plan, self._state = looping, looping.plan, state
        self._by_name = {entry.name: entry for entry in state.layout.entries}
        self._totals = {entry.name: number for number, entry in enumerate(state.layout.of_rule(Rule.TOTAL))}
        self._work, self._number = FIRST, 0
        looping.start_from(self._read)

    def _read(self, name: str) -> Array:
        (array,) = self._state.tensors([self._by_name[name]])
        return array

    def leave(self) -> None:
        """The state is no version that follows from the one before it: the loop cannot go on to it.

        Not even to the next step: a version that comes of a checkpoint or a snapshot has no totals.
        """
        self._looping.stop()

    def enter(self, work: Work, number: int) -> None:
        """The slice that comes next."""
        self._work, self._number = work, number

    def compute(
        self, part: SlicePart, begin: Callable[[], None], tell: Callable[[str, Any], None] | None
    ) -> Gave:
        """Has the loop compute it: see Looping."""
        return self._looping.compute(self._work, part, is_first=self._number == 0, begin=begin, tell=tell)

    @property
    def no_cost(self) -> float:
        """What stands for the cost of a slice of which none was told."""
        return 0.0 if self._plan.one_tick else math.nan

    def totals(self, gave: Gave) -> dict[str, Any]:
        """Summands of a slice, by the names of their entries."""
        return {total_name(self._work.stage, name): value for name, value in gave.totals.items()}

    def numbers(self, totals: Mapping[str, Any]) -> list[int]:
        """Of their entries, among all of totals."""
        return [self._totals[name] for name in totals]

    def keep(self, work: Work, out: Vector) -> None:
        """What the loop has made, at the end of a step, of what it keeps."""
        self.put(out, self._looping.kept(work), np.copyto)

    def put(self, out: Vector, values: Mapping[str, Any], put: Callable[[Array, Any], Any]) -> None:
        """Each where the entry of its name lies."""
        targets = out.tensors([self._by_name[name] for name in values])
        for target, value in zip(targets, values.values(), strict=True):
            put(target, value)

    def load(self, put: Callable[[Any, Array], Any]) -> None:
        """Gives what it keeps of the model the values of the version: the loop may be elsewhere."""
        self._looping.stop()
        for name, tensor in self.kept.items():
            put(tensor, np.array(self._read(name)))
