"""Gradients that leave while the backward pass goes on: PyTorch's hooks, as far as they can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from elasticflow.frameworks.base import CostError

RECOMPUTED = (
    "{name}: gets no gradient, and forward() calls torch.utils.checkpoint with use_reentrant=True, which "
    "may hide those in it from PyTorch: say use_reentrant=False."
)


class GradientHooks:
    """Hears of each parameter's gradient in the backward pass.

    leaves, names: of the parameters, in the layout's order. ``numbers``: by name. reliable: whether hooks are
    told of final gradients, each once. Not where the program's own hooks change them, or a backward pass of
    its own goes on in this one; None: it is found out in the first slice.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        self.leaves, self.names = leaves, names
        self.numbers = {name: number for number, name in enumerate(names)}
        self.reliable: bool | None = None
        self._heard: list[list[tuple[torch.Tensor, int]]] = [[] for _ in leaves]
        """By parameter: the gradients that its hook was told of in this backward pass, and how often each had
        been written to by then."""
        self._tell: Callable[[int, torch.Tensor], None] | None = None
        for number, leaf in enumerate(leaves):
            leaf.register_hook(partial(self._hear, number))  # type: ignore[no-untyped-call]

    def listen(self, tell: Callable[[int, torch.Tensor], None]) -> None:
        """tell: called with a parameter's number and its gradient, if that can be relied on."""
        self._tell = tell if self.reliable else None

    def _hear(self, number: int, gradient: torch.Tensor | None) -> None:
        """Called by PyTorch in the backward pass. Sparse ones are made dense after it, and not told of."""
        if gradient is None or gradient.layout is not torch.strided:
            return
        if self._tell or self.reliable is None:
            self._heard[number].append((gradient, gradient._version))
            if self._tell and len(self._heard[number]) == 1:
                self._tell(number, gradient)

    def check(self, found: Sequence[torch.Tensor | None], taken: set[int]) -> None:
        """Finds out whether hooks can be relied on; later raises RuntimeError if one could not be.

        found: what came out; taken: parameters whose gradients were told of. Nothing is told after this.
        """
        if self.reliable is None:
            pairs = zip(self._heard, found, strict=True)
            self.reliable = all(
                _is_only(heard, final) for heard, final in pairs if heard or final is not None
            )
        wrong = [n for n in sorted(taken) if not _is_only(self._heard[n], found[n])]
        if wrong:
            raise RuntimeError(
                f"the gradient of {self.names[wrong[0]]} was changed after it was final: by a hook, "
                "or a backward pass inside the backward pass, which the first slice had not"
            )
        self._tell = None  # a graph that is made of it now has nothing to tell

    def forget(self) -> None:
        """The slice is over, however that was."""
        self._tell = None
        for heard in self._heard:
            heard.clear()


def _is_only(heard: Sequence[tuple[torch.Tensor, int]], final: torch.Tensor | None) -> bool:
    """Whether the one gradient that was told of is the one that came out, as it was then."""
    if len(heard) != 1 or final is None:
        return False
    gradient, version = heard[0]
    return gradient.data_ptr() == final.data_ptr() and gradient._version == version


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """As servers know them: that of ``nn.Embedding(sparse=True)``, say, is none."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def check_recomputed(cost: torch.Tensor, name: str) -> None:
    """Raises CostError if a parameter without a gradient may be in a checkpoint that is reentrant.

    Such a one hides from PyTorch which parameters it uses. name: the parameter's.
    """
    seen, ahead = set[object](), [cost.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise CostError(RECOMPUTED.format(name=name))
        seen.add(node)
        ahead += [each for each, _ in node.next_functions]
