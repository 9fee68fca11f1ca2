"""Slices as CUDA graphs: forward and backward launched at once, where launching kernels takes longest.

A graph does not run the program's Python code again, so it stands for a slice only if that code does the same
for every slice of its shape: the setting ``graphs`` says so. What can be tested is: whether the code draws
random numbers other than the GPU's, and whether a graph's bits are those of the code, on another slice than
the one it was made of. Source: PyTorch's notes on CUDA graphs (whole-network capture).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

Gradients: TypeAlias = Sequence[torch.Tensor | None]
WARM = 3
"""Slices of one shape before a graph is made: libraries choose, and load, their kernels in the first ones."""
MOST = 4
"""Shapes that graphs are made of: each holds the memory of a slice."""


class Computed(NamedTuple):
    """cost: not weighted. gradients: of the parameters, weighted."""

    cost: torch.Tensor
    gradients: Gradients


Compute: TypeAlias = Callable[[Mapping[str, torch.Tensor], torch.Tensor | float], Computed]


class _Graph:
    """One shape's. verified: whether it gave the bits of the code."""

    def __init__(self, batch: Mapping[str, torch.Tensor], weight: float, like: torch.Tensor) -> None:
        self.verified = False
        self._batch = {name: tensor.clone() for name, tensor in batch.items()}
        self._weight = torch.full_like(like, weight)
        self._graph = torch.cuda.CUDAGraph()
        self._computed: Computed

    def capture(self, compute: Compute) -> None:
        # Another thread, which waits for copies, does as it likes meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._computed = compute(self._batch, self._weight)

    def replay(self, batch: Mapping[str, torch.Tensor], weight: float) -> Computed:
        torch._foreach_copy_(list(self._batch.values()), [batch[name] for name in self._batch])
        self._weight.fill_(weight)
        self._graph.replay()
        return self._computed


class Graphs:
    """A program's graphs, by the shape of a slice.

    compute: the program's forward and backward. state: buffers that it changes. reset: puts those, and the
    random generators, back to where a slice began.
    """

    def __init__(self, compute: Compute, state: Sequence[torch.Tensor], reset: Callable[[int], None]) -> None:
        self._compute, self._state, self._reset = compute, state, reset
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Graph] = {}
        self._refused = False

    def forget(self) -> None:
        """The code does something else from now on."""
        self._seen, self._graphs, self._refused = {}, {}, False

    def replay(self, batch: Mapping[str, torch.Tensor], weight: float) -> Computed | None:
        """A slice's, by a graph; None if there is none (yet)."""
        graph = self._graphs.get(_shape(batch))
        return graph.replay(batch, weight) if graph and graph.verified else None

    def learn(self, batch: Mapping[str, torch.Tensor], seed: int, weight: float, found: Computed) -> None:
        """A slice was computed by the program's code: makes a graph of it, or compares one with it."""
        shape = _shape(batch)
        self._seen[shape] = seen = self._seen.get(shape, 0) + 1
        if self._refused or seen <= WARM or (shape not in self._graphs and len(self._graphs) >= MOST):
            return
        try:
            if shape in self._graphs:
                why = self._verify(self._graphs[shape], batch, seed, weight, found)
            else:
                why = self._make(shape, batch, seed, weight, found)
        except Exception as error:  # noqa: BLE001  (whatever it is: the slice is computed, by the code)
            why = str(error).partition("\n")[0] or type(error).__name__
            _end_capture(found.cost.device)
        if why:
            self._refused = True
            self._graphs.clear()
            print(
                f"graphs: not for this program, whose slices are computed one kernel at a time: {why}",
                flush=True,
            )

    def _make(
        self, shape: Hashable, batch: Mapping[str, torch.Tensor], seed: int, weight: float, found: Computed
    ) -> str:
        graph = _Graph(batch, weight, found.cost)
        self._reset(seed)
        before = _drawn()
        graph.capture(self._compute)
        if _drawn() != before:
            return "it draws random numbers of Python, NumPy or the processor"
        self._graphs[shape] = graph
        return ""

    def _verify(
        self,
        graph: _Graph,
        batch: Mapping[str, torch.Tensor],
        seed: int,
        weight: float,
        found: Computed,
    ) -> str:
        """What is wrong with a graph; "": nothing."""
        right = [each.clone() for each in (*_tensors(found), *self._state)]
        self._reset(seed)
        replayed = graph.replay(batch, weight)
        same = [each is None for each in found.gradients] == [each is None for each in replayed.gradients]
        if not same or not all(map(_same_bits, right, (*_tensors(replayed), *self._state))):
            return "a graph of it gave other bits than its code"
        graph.verified = True
        return ""


def _end_capture(device: torch.device) -> None:
    """Of the random generator, which believes in a capture that failed: its state is put apart from that."""
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


def _shape(batch: Mapping[str, torch.Tensor]) -> Hashable:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())


def _tensors(computed: Computed) -> list[torch.Tensor]:
    return [computed.cost, *(each for each in computed.gradients if each is not None)]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_floating_point():  # of which some are not equal to themselves
        one, other = (each.contiguous().view(torch.uint8) for each in (one.reshape(-1), other.reshape(-1)))
    return torch.equal(one, other)


def _drawn() -> tuple[object, ...]:
    """States of the random generators whose numbers a graph would repeat."""
    numpy = np.random.get_state(legacy=False)["state"]
    processor = torch.default_generator.get_state()
    return random.getstate(), numpy["key"].tobytes(), numpy["pos"], bytes(processor.tolist())
