"""The update of one chunk on a parameter server: ``torch.optim`` in NumPy.

A kernel works through a chunk block by block, so that what one pass over a block leaves behind is
still in cache for the next, and writes no temporaries but one block of its own. Only ``+ - * /``,
``sqrt`` and ``maximum`` touch the elements. IEEE 754 fixes their results to the last bit (NaN's payload
apart), so an element's next value depends on that element alone: not on where a chunk begins or ends, on
alignment, or on the machine. Fused multiply-adds would break this (vector body against scalar tail).

Formulas and their order follow ``torch.optim``'s single-tensor functions; last bits may differ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from elasticflow import api
from elasticflow.layout import Array, aligned_empty

BLOCK_BYTES = 128 << 10
"""Adam's six blocks (parameters, gradient, two moments, output, spare) fit a level-2 cache of 1 MB."""

Slots: TypeAlias = Mapping[str, Array]
Number: TypeAlias = Callable[[float], Array]
"""Makes a 0-d array of the parameters' dtype: cast once per chunk, not in each pass over each block."""
Step: TypeAlias = Callable[[Array, Sequence[Array], Sequence[Array], Array], None]
"""``step(grad, slots, after, out)`` writes what follows the slots of one block to ``after``, which may be
the same arrays, and what to subtract from its parameters, learning rate included, to ``out``, which is
scratch until then. ``grad`` is only read.
"""


class Kernel(ABC):
    """The update rule of one optimizer. Holds no arrays: any number of threads may share a kernel.

    slots: names of the arrays kept per parameter, as in the state of torch's optimizer. initial: the
    value of all their elements before the first update.
    coupled_decay: weight decay that is added to the gradient (L2 regularisation).
    decoupled_decay: weight decay that shrinks the parameters directly.
    """

    slots: tuple[str, ...] = ()
    initial: float = 0.0
    coupled_decay: float
    decoupled_decay: float = 0.0

    def __init__(self, optimizer: api.Optimizer) -> None:
        self.coupled_decay = optimizer.weight_decay
        self.maximize = optimizer.maximize

    def new_slots(self, like: Array) -> dict[str, Array]:
        """Slots before the first update, each of the shape and dtype of the parameters ``like``."""
        return {name: np.full_like(like, self.initial) for name in self.slots}

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
    ) -> None:
        """Write the parameters that follow ``params`` to ``out``, and the slots that follow to ``slots_out``.

        params, grad, slots: (n,) of one dtype, only read; out, slots_out: the same, overlapping none of
        them, but that an array of ``slots_out`` may be its namesake in ``slots``: the bits are the same.
        update: the number of this update, from 1.
        grad_scale: factor on the gradient, see ``clip_scale``.
        Overflow and NaN pass silently into ``out``; the worker looks for them.
        """
        assert params.shape == grad.shape == out.shape and params.dtype == grad.dtype == out.dtype
        before, after = ([of[name] for name in self.slots] for of in (slots, slots_out))
        length = BLOCK_BYTES // params.itemsize
        spare = aligned_empty(min(BLOCK_BYTES, params.nbytes)).view(params.dtype)
        number = partial(np.array, dtype=params.dtype)
        with np.errstate(all="ignore"):
            step = self.step(lr, update, number)
            factor = number(-grad_scale if self.maximize else grad_scale)
            decay = number(self.coupled_decay)
            shrink = number(1 - lr * self.decoupled_decay)
            for start in range(0, params.size, length):
                block = slice(start, start + length)
                p, g, o = params[block], grad[block], out[block]
                s = spare[: p.size]
                if factor != 1:
                    g = np.multiply(g, factor, out=s)
                if self.coupled_decay:
                    np.multiply(p, decay, out=o)
                    g = np.add(g, o, out=s)
                step(g, [slot[block] for slot in before], [slot[block] for slot in after], o)
                if shrink != 1:  # the gradient, which may lie in s, has been used
                    p = np.multiply(p, shrink, out=s)
                np.subtract(p, o, out=o)

    @abstractmethod
    def step(self, lr: float, update: int, number: Number) -> Step:
        """The step for this update. ``number`` makes its constants."""


class SGDKernel(Kernel):
    """Momentum as in Sutskever et al. 2013, "On the importance of initialization and momentum in deep
    learning", in torch's form: the learning rate is applied to the buffer, not kept in it.
    """

    def __init__(self, optimizer: api.SGD) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        if optimizer.momentum:
            self.slots = ("momentum_buffer",)

    def step(self, lr: float, update: int, number: Number) -> Step:
        rate = number(lr)
        momentum = number(self.optimizer.momentum)
        intake = number(1 - self.optimizer.dampening)
        nesterov = self.optimizer.nesterov

        def plain(grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
            np.multiply(grad, rate, out=out)

        def with_momentum(grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
            (old,), (buffer,) = slots, after
            if update == 1:  # dampening does not apply yet
                np.copyto(buffer, grad)
            else:
                np.multiply(old, momentum, out=buffer)
                taken = grad if intake == 1 else np.multiply(grad, intake, out=out)
                np.add(buffer, taken, out=buffer)
            if nesterov:
                np.multiply(buffer, momentum, out=out)
                np.add(grad, out, out=out)
                np.multiply(out, rate, out=out)
            else:
                np.multiply(buffer, rate, out=out)

        return with_momentum if self.slots else plain


class AdamKernel(Kernel):
    """Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1, computed in the
    order of the end of section 2; AMSGrad from Reddi et al. 2018, "On the Convergence of Adam and
    Beyond"; for ``api.AdamW``, Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
    """

    def __init__(self, optimizer: api.Adam) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self.slots = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * optimizer.amsgrad
        if isinstance(optimizer, api.AdamW):
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def step(self, lr: float, update: int, number: Number) -> Step:
        beta1, beta2 = self.optimizer.betas
        root_correction2 = math.sqrt(1 - beta2**update)
        rate = number(lr / (1 - beta1**update) * root_correction2)
        eps = number(self.optimizer.eps * root_correction2)
        intake1, intake2 = number(1 - beta1), number(1 - beta2)
        keep1, keep2 = number(1 - float(intake1)), number(beta2)  # torch.lerp rounds 1 - beta1 first
        slow = float(intake1) < 0.5

        def step(grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
            (old_mean, old_square, *old_largest), (mean, square, *largest) = slots, after
            np.subtract(grad, old_mean, out=out)
            if slow:  # torch.lerp starts from the nearer end
                np.multiply(out, intake1, out=out)
                np.add(old_mean, out, out=mean)
            else:
                np.multiply(out, keep1, out=out)
                np.subtract(grad, out, out=mean)

            np.multiply(grad, grad, out=out)
            np.multiply(out, intake2, out=out)
            np.multiply(old_square, keep2, out=square)
            np.add(square, out, out=square)
            for old_top, top in zip(old_largest, largest, strict=True):
                square = np.maximum(old_top, square, out=top)

            np.sqrt(square, out=out)
            np.add(out, eps, out=out)
            np.divide(mean, out, out=out)
            np.multiply(out, rate, out=out)

        return step


class AdagradKernel(Kernel):
    """Duchi et al. 2011, "Adaptive Subgradient Methods", diagonal; ``lr_decay`` as in torch."""

    slots = ("sum",)

    def __init__(self, optimizer: api.Adagrad) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self.initial = optimizer.initial_accumulator_value

    def step(self, lr: float, update: int, number: Number) -> Step:
        rate = number(lr / (1 + (update - 1) * self.optimizer.lr_decay))
        eps = number(self.optimizer.eps)

        def step(grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
            (old,), (total,) = slots, after
            np.multiply(grad, grad, out=out)
            np.add(old, out, out=total)
            np.sqrt(total, out=out)
            np.add(out, eps, out=out)
            np.divide(grad, out, out=out)
            np.multiply(out, rate, out=out)

        return step


def kernel_for(optimizer: api.Optimizer) -> Kernel:
    """The kernel that updates as ``optimizer`` says; the learning rate comes with each update."""
    if isinstance(optimizer, api.SGD):
        return SGDKernel(optimizer)
    if isinstance(optimizer, api.Adagrad):
        return AdagradKernel(optimizer)
    return AdamKernel(optimizer)


def squared_norm(grad: Array) -> float:
    """Sum of the squares of a chunk, (n,), in float64.

    Equal bytes give equal bits wherever they lie: each block is squared in place in an aligned float64
    array and added, element by element, to another, which is summed at the end. (BLAS's ``dot`` and
    reductions over the chunk itself may group terms by alignment, threads or processor.)
    """
    length = max(1, min(grad.size, BLOCK_BYTES // 8))
    squares, sums = aligned_empty(2 * 8 * length).view(np.float64).reshape(2, length)
    sums.fill(0)
    with np.errstate(all="ignore"):
        for start in range(0, grad.size, length):
            block = grad[start : start + length]
            s, total = squares[: block.size], sums[: block.size]
            np.copyto(s, block)
            np.multiply(s, s, out=s)
            np.add(total, s, out=total)
        return float(np.add.reduce(sums))


def clip_scale(total_norm: float, clip_norm: float) -> float:
    """The factor ``torch.nn.utils.clip_grad_norm_`` puts on gradients of this norm; at most 1.

    A norm that is NaN gives NaN, so that it shows in the parameters, as in torch.
    """
    return min(clip_norm / (total_norm + 1e-6), 1.0)  # in this order min passes NaN on
