"""What a program's loop needs of a framework: see ``looping``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from elasticflow.frameworks.loop_plan import ArrayShape
from elasticflow.step.layout import Array


class KeptThing(Protocol):
    """A thing that the loop keeps. names: of those of its entries that are the model's tensors."""

    names: frozenset[str]

    def arrays(self) -> dict[str, Array]:
        """Its values by name of entry: copies."""

    def load(self, read: Callable[[str], Array], *, own: bool) -> None:
        """Gives it the values of a version. own: also those that are not the model's."""


class LoopTensors(Protocol):
    """What a loop needs of a framework."""

    def begin(self) -> None:
        """A slice begins: nothing is left of an earlier one."""

    def changed(self) -> str:
        """A parameter, or kept tensor of the model, that was written to since then; "": none."""

    def gradients(self, target: Any, gradient: Any) -> Iterator[tuple[str, Any]]:
        """Parameters' names and gradients, last layers first. Raises LoopError for what is none."""

    def summand(self, name: str, value: Any) -> tuple[Any, ArrayShape]:
        """What ``all_reduce`` was given, as a tensor of its own. Raises LoopError for what is no number."""

    def times(self, value: Any, factor: float) -> Any: ...

    def nothing(self, value: Any) -> Any:
        """Zeros like it."""

    def of_array(self, array: Array) -> Any:
        """A copy of it, as a tensor."""

    def kept(self, name: str, thing: Any) -> KeptThing:
        """Raises LoopError for what cannot be kept."""
