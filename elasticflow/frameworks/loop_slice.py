"""What a program's loop gives for one slice of a round: gradients, summands, a cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticflow.errors import LoopError
from elasticflow.frameworks.loop_plan import Gave
from elasticflow.frameworks.loop_tensors import LoopTensors


class LoopSlice:
    """The one in work. share: of the step's records. is_first: of the step's. path: the program's.

    tell: called with each gradient as it is pushed, multiplied by the share.
    """

    def __init__(
        self,
        path: str,
        tensors: LoopTensors,
        share: float,
        *,
        is_first: bool,
        tell: Callable[[str, Any], None] | None,
    ) -> None:
        self.gave = Gave()
        self._path, self._tensors = path, tensors
        self._share, self._is_first, self._tell = share, is_first, tell

    def push(self, target: Any, gradient: Any) -> None:
        gave = self.gave
        for name, each in self._tensors.gradients(target, gradient):
            if name in gave.gradients:
                raise LoopError(
                    f"{self._path}: loop() pushes {name} twice for one slice of a round; "
                    "add its gradients up."
                )
            weighted = None if each is None else self._tensors.times(each, self._share)
            gave.gradients[name] = weighted
            if self._tell and weighted is not None:
                self._tell(name, weighted)

    def reduce(self, name: str, value: Any, op: str) -> None:
        gave = self.gave
        if op not in ("sum", "mean", "first"):
            raise LoopError(
                f'{self._path}: all_reduce of {name!r}: op is "sum", "mean" or "first", not {op!r}.'
            )
        if not isinstance(name, str) or not name:
            raise LoopError(f"{self._path}: all_reduce({name!r:.40}, ...): the first argument is a name.")
        if name in gave.totals:
            raise LoopError(f"{self._path}: loop() gives all_reduce {name!r} twice for one slice of a round.")
        tensor, gave.shapes[name] = self._tensors.summand(name, value)
        if op == "mean":
            if not gave.shapes[name].dtype.startswith("float"):
                raise LoopError(f"{self._path}: all_reduce of {name!r}: a mean is of floating numbers.")
            tensor = self._tensors.times(tensor, self._share)
        elif op == "first" and not self._is_first:
            tensor = self._tensors.nothing(tensor)
        gave.totals[name] = tensor

    def tell_cost(self, value: Any) -> None:
        self.gave.cost, _ = self._tensors.summand("cost", value)
