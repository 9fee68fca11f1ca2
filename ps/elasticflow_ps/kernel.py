"""What the update rules of all optimizers have in common: gradient, weight decay, blocks, averages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from elasticflow import api
from elasticflow.step.layout import Array, aligned_empty
from elasticflow_ps import native
from elasticflow_ps.finite import are_numbers

BLOCK_BYTES = 128 << 10
"""Adam's six blocks (parameters, gradient, two moments, output, spare) fit a level-2 cache of 1 MB."""

Slots: TypeAlias = Mapping[str, Array]
Step: TypeAlias = Callable[[Array, Array, Sequence[Array], Sequence[Array], Array], None]
"""``step(params, grad, slots, after, out)`` writes what follows the slots of one block to ``after``, which
may be the same arrays, and what to subtract from its parameters, learning rate included, to ``out``, which
is scratch until then. ``params`` and ``grad`` are only read.
"""


Opt = TypeVar("Opt", bound=api.Optimizer)


class Kernel(ABC, Generic[Opt]):
    """The update rule of one optimizer. Holds no arrays: any number of threads may share a kernel.

    rule: its name in ``native.RULES``; None: only NumPy knows it.
    slots: names of the arrays kept per parameter, as in the state of torch's optimizer: first those of the
    rule, then the ``averages`` of the parameters, by name with the weight of the newest in an update.
    initials: the values of all their elements before the first update, of those where that is not 0.
    coupled_decay: weight decay that is added to the gradient (L2 regularisation).
    decoupled_decay: weight decay that shrinks the parameters directly.
    bound: the largest size of an element of the gradient.
    """

    rule: str | None
    rule_slots: tuple[str, ...] = ()
    initials: Mapping[str, float] = {}
    coupled_decay: float
    decoupled_decay: float = 0.0

    def __init__(self, optimizer: Opt) -> None:
        self.optimizer = optimizer
        self.coupled_decay, self.maximize = optimizer.weight_decay, optimizer.maximize
        if optimizer.form == "keras":
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay
        self.bound = math.inf if optimizer.clip_value is None else optimizer.clip_value
        self.averages: dict[str, Callable[[int], float]] = {}
        if (kept := optimizer.ema) is not None:
            self.averages["ema"] = lambda update: 1 - kept if update > 1 else 1.0

    @property
    def slots(self) -> tuple[str, ...]:
        return *self.rule_slots, *self.averages

    def initial(self, slot: str) -> float:
        return self.initials.get(slot, 0.0)

    def new_slots(self, like: Array) -> dict[str, Array]:
        """Slots before the first update, each of the shape and dtype of the parameters ``like``."""
        return {name: np.full_like(like, self.initial(name)) for name in self.slots}

    def apply(
        self,
        params: Array,
        grad: Array,
        slots: Slots,
        out: Array,
        slots_out: Slots,
        *,
        lr: float,
        update: int,
        grad_scale: float = 1.0,
        late: bool = False,
    ) -> bool:
        """Write the parameters that follow ``params`` to ``out``, and the slots that follow to ``slots_out``.

        Returns whether all of ``out`` are numbers: False if one is NaN, or infinite and was not before.

        params, grad, slots: (n,) of one dtype, only read; out, slots_out: the same, overlapping none of
        them, but that an array of ``slots_out`` may be its namesake in ``slots``: the bits are the same.
        update: the number of this update, from 1.
        grad_scale: factor on the gradient, see ``clip_scale``. late: averages begin with what the parameters
        were before the first update.
        """
        assert params.shape == grad.shape == out.shape and params.dtype == grad.dtype == out.dtype
        before, after = ([of[name] for name in self.rule_slots] for of in (slots, slots_out))
        rule = self.rule_at(update)
        finite = self._apply(rule, params, grad, out, before, after, self.numbers(lr, update, grad_scale))
        for name, weight in self.averages.items():
            _average(slots[name], out, slots_out[name], weight(max(update, 2) if late else update))
        return finite

    def _apply(
        self,
        rule: str | None,
        params: Array,
        grad: Array,
        out: Array,
        before: Sequence[Array],
        after: Sequence[Array],
        numbers: Sequence[float],
    ) -> bool:
        if rule is not None and native.takes(params, grad, out, *before, *after):
            return native.update(rule, params, grad, out, before, after, numbers)
        return self.apply_with_numpy(params, grad, out, before, after, numbers)

    def rule_at(self, update: int) -> str | None:
        """``rule``, as far as this update follows it."""
        return self.rule

    def apply_with_numpy(
        self,
        params: Array,
        grad: Array,
        out: Array,
        before: Sequence[Array],
        after: Sequence[Array],
        numbers: Sequence[float],
    ) -> bool:
        """``apply`` where C cannot, and what its bits have to be.

        numbers: see ``numbers``.
        """
        length, finite = BLOCK_BYTES // params.itemsize, True
        spare = aligned_empty(min(BLOCK_BYTES, params.nbytes)).view(params.dtype)
        with np.errstate(all="ignore"):
            # 0-d arrays: cast once per chunk, not in each pass over each block
            factor, decay, shrink, bound, *constants = (np.array(number, params.dtype) for number in numbers)
            below = np.negative(bound)
            step = self.step(*constants)
            for start in range(0, params.size, length):
                block = slice(start, start + length)
                p, g, o = params[block], grad[block], out[block]
                s = spare[: p.size]
                if factor != 1:
                    g = np.multiply(g, factor, out=s)
                if self.bound < math.inf:
                    g = np.minimum(np.maximum(g, below, out=s), bound, out=s)
                if self.coupled_decay:
                    np.multiply(p, decay, out=o)
                    g = np.add(g, o, out=s)
                step(p, g, [slot[block] for slot in before], [slot[block] for slot in after], o)
                if shrink != 1:  # the gradient, which may lie in s, has been used
                    p = np.multiply(p, shrink, out=s)
                np.subtract(p, o, out=o)
                finite = finite and are_numbers(o, params[block])
        return finite

    def numbers(self, lr: float, update: int, grad_scale: float) -> tuple[float, ...]:
        """Factor on the gradient, coupled decay, factor on the parameters, bound, and the ``constants``."""
        factor = -grad_scale if self.maximize else grad_scale
        shrink = 1 - lr * self.decoupled_decay
        return factor, self.coupled_decay, shrink, self.bound, *self.constants(lr, update)

    @abstractmethod
    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        """The numbers of the rule for this update, as its function in C, and ``step``, take them."""

    @abstractmethod
    def step(self, *constants: Array) -> Step:
        """The step in NumPy with these constants, 0-d arrays of the parameters' dtype."""


class PerTensorKernel(Kernel[Opt]):
    """That of an optimizer whose learning rate is multiplied, for each tensor, by its ``trust`` ratio.

    Servers first add up norms of what of a tensor lies in each chunk, then update with that learning rate: so
    the ratio, as all else, is the same whoever holds which chunks.
    """

    def apply_to(
        self,
        pieces: Sequence[tuple[slice, float]],
        params: Array,
        grad: Array,
        slots: Slots,
        out: Array,
        slots_out: Slots,
        *,
        lr: float,
        update: int,
        grad_scale: float,
        late: bool = False,
    ) -> bool:
        """``apply`` of each piece by itself. pieces: where they lie, and their tensors' ratios."""
        finite = True
        for piece, trust in pieces:
            before, after = ({name: slot[piece] for name, slot in of.items()} for of in (slots, slots_out))
            finite &= self.apply(
                params[piece],
                grad[piece],
                before,
                out[piece],
                after,
                lr=lr * trust,
                update=update,
                grad_scale=grad_scale,
                late=late,
            )
        return finite

    @abstractmethod
    def trust(self, weights: float, change: float) -> float:
        """From the norms of a tensor's values, and of what the ratio sets them in relation to."""

    @abstractmethod
    def squared_norms(
        self, params: Array, grad: Array, slots: Slots, *, update: int, grad_scale: float
    ) -> tuple[float, float]:
        """Both, squared, over a part of a tensor, before the update that ``apply`` makes. Changes nothing."""


def _average(average: Array, params: Array, out: Array, weight: float) -> None:
    """out := average * (1 - weight) + params * weight. ``out`` may be ``average``."""
    if native.takes(average, params, out):
        native.update("sgd", average, params, out, (), (), (-weight, 0.0, 1 - weight, math.inf, 1.0))
        return
    with np.errstate(all="ignore"):
        newest = np.multiply(params, params.dtype.type(-weight))
        np.multiply(average, average.dtype.type(1 - weight), out=out)
        np.subtract(out, newest, out=out)


def lerp(start: Array, end: Array, intake: Array, spare: Array, out: Array) -> None:
    """out := what is ``intake``, 0-d, of the way from ``start``, which may be ``out``, to ``end``.

    As torch.lerp, which starts from the nearer end, and rounds ``1 - intake`` first.
    """
    np.subtract(end, start, out=spare)
    if float(intake) < 0.5:
        np.multiply(spare, intake, out=spare)
        np.add(start, spare, out=out)
    else:
        np.multiply(spare, np.array(1 - float(intake), intake.dtype), out=spare)
        np.subtract(end, spare, out=out)


AnyKernel: TypeAlias = Kernel[Any]
"""That of an optimizer of which only ``Kernel`` needs to know."""
