"""What a loop of the program's own does in each step: found out in one step, and the same in all.

It is part of the layout of what travels, so all workers must have the same: a pure function of the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from elasticflow.errors import LoopError
from elasticflow.step.layout import Entry, Rule

TOTALS = "totals"
"""What names of entries of ``all_reduce`` begin with."""
KEPT = "kept"
"""And of what is kept, but for the model's own tensors."""


class ArrayShape(NamedTuple):
    """Of an array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


@dataclass
class Gave:
    """What the body has given for one slice. cost: None if it told none.

    gradients: by name of a parameter; None: there was none. totals: summands by name; how: of each.
    """

    gradients: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, ArrayShape] = field(default_factory=dict)
    cost: Any = None


class LoopRound(NamedTuple):
    """What slices give in one round of each step."""

    parameters: frozenset[str]
    totals: Mapping[str, ArrayShape]


class LoopPlan(NamedTuple):
    """rounds: of a step. kept: what is kept, by name of its entry; own: those that are not the model's."""

    rounds: tuple[LoopRound, ...]
    kept: Mapping[str, ArrayShape]
    own: Collection[str]

    @property
    def one_tick(self) -> bool:
        return len(self.rounds) == 1 and not self.kept

    def rounds_of(self, parameter: str) -> tuple[int, ...]:
        return tuple(number for number, each in enumerate(self.rounds) if parameter in each.parameters)

    def of_model(self, entries: Sequence[Entry], where: str) -> list[Entry]:
        """Entries of a model's tensors, with the rules and rounds that the loop gives them.

        Raises LoopError for parameters that are neither pushed nor kept.
        """
        made = []
        for entry in entries:
            if entry.name in self.kept:
                made.append(replace(entry, rule=Rule.KEPT, part=0))
                continue
            rounds = self.rounds_of(entry.name) if entry.rule is Rule.UPDATE else ()
            if entry.rule is Rule.UPDATE and not rounds:
                raise LoopError(
                    f"{where}: {entry.name} is a parameter that loop() neither pushes nor keeps in the first "
                    "step: step.push() it, session.keep() it, or say requires_grad_(False) in model()."
                )
            made.append(entry if self.one_tick else replace(entry, rounds=rounds))
        return made

    @property
    def more(self) -> list[Entry]:
        """Entries besides the model's: totals and what is kept."""
        found = [
            Entry(
                total_name(number, name), shape.shape, shape.dtype, Rule.TOTAL,
                rounds=() if self.one_tick else (number,),
            )
            for number, each in enumerate(self.rounds)
            for name, shape in each.totals.items()
        ]  # fmt: skip
        own = [Entry(name, *self.kept[name], Rule.KEPT) for name in self.kept if name in self.own]
        return [*found, *own]

    def check(self, number: int, found: Gave, where: str) -> None:
        """Raises LoopError if a slice has not given in round ``number`` what one gave in the first step."""
        usual = self.rounds[number]
        for what, now, then in (
            ("push", found.gradients.keys(), usual.parameters),
            ("all_reduce", found.totals.keys(), usual.totals.keys()),
        ):
            if missing := sorted(then - now):
                raise LoopError(
                    f"{where}: no {what} of {missing[0]!r}, and in the first step there was one: what a "
                    "slice gives must not depend on its records, or on who computes it."
                )
            if more := sorted(now - then):
                raise LoopError(
                    f"{where}: {what} of {more[0]!r}, and in the first step there was none: what a slice "
                    "gives must not depend on its records, or on who computes it."
                )
        for name, shape in found.shapes.items():
            if shape != usual.totals[name]:
                raise LoopError(
                    f"{where}: all_reduce of {name!r} is {shape}, and in the first step it was "
                    f"{usual.totals[name]}: a sum over slices has one shape."
                )


def total_name(number: int, name: str) -> str:
    """The entry's of a total of round ``number``."""
    return f"{TOTALS}.{number}.{name}"
