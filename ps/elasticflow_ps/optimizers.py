"""The update of one chunk on a parameter server: ``torch.optim``, and FTRL, in C or in NumPy.

Only ``+ - * /``, ``sqrt``, ``maximum`` and ``minimum`` touch the elements. IEEE 754 fixes their results to
the last bit (NaN's payload apart), so an element's next value depends on that element alone: not on where
a chunk begins or ends, on alignment, on threads, or on the machine; and C (``native.c``) and NumPy give the
same bits. Fused multiply-adds would break this (vector body against scalar tail).

Formulas and their order follow ``torch.optim``'s single-tensor functions. Where torch fuses multiply-adds, as
it does on processors that can, its last bits are others. Where it does not (``ATEN_CPU_CAPABILITY=default``),
SGD's bits are the same in all its forms; those of Adam and Adagrad are not, because torch multiplies by
``1 - beta2`` and by the learning rate before it squares and divides, and has Adam's bias correction in each
element instead of in the learning rate. FTRL is not in torch.

NumPy works through a chunk block by block, so that what one pass over a block leaves behind is still in cache
for the next, and writes no temporaries but one block of its own, two with FTRL. C takes a single pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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


class Kernel(ABC):
    """The update rule of one optimizer. Holds no arrays: any number of threads may share a kernel.

    rule: its name in ``native.RULES``.
    slots: names of the arrays kept per parameter, as in the state of torch's optimizer. initial: the
    value of all their elements before the first update.
    coupled_decay: weight decay that is added to the gradient (L2 regularisation).
    decoupled_decay: weight decay that shrinks the parameters directly.
    """

    rule: str
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
    ) -> bool:
        """Write the parameters that follow ``params`` to ``out``, and the slots that follow to ``slots_out``.

        Returns whether all of ``out`` are numbers: False if one is NaN, or infinite and was not before.

        params, grad, slots: (n,) of one dtype, only read; out, slots_out: the same, overlapping none of
        them, but that an array of ``slots_out`` may be its namesake in ``slots``: the bits are the same.
        update: the number of this update, from 1.
        grad_scale: factor on the gradient, see ``clip_scale``.
        """
        assert params.shape == grad.shape == out.shape and params.dtype == grad.dtype == out.dtype
        before, after = ([of[name] for name in self.slots] for of in (slots, slots_out))
        numbers = self.numbers(lr, update, grad_scale)
        if native.takes(params, grad, out, *before, *after):
            return native.update(self.rule, params, grad, out, before, after, numbers)
        return self.apply_with_numpy(params, grad, out, before, after, numbers)

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
            factor, decay, shrink, *constants = (np.array(number, params.dtype) for number in numbers)
            step = self.step(*constants)
            for start in range(0, params.size, length):
                block = slice(start, start + length)
                p, g, o = params[block], grad[block], out[block]
                s = spare[: p.size]
                if factor != 1:
                    g = np.multiply(g, factor, out=s)
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
        """Factor on the gradient, coupled decay, factor on the parameters, and the ``constants``."""
        factor = -grad_scale if self.maximize else grad_scale
        shrink = 1 - lr * self.decoupled_decay
        return factor, self.coupled_decay, shrink, *self.constants(lr, update)

    @abstractmethod
    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        """The numbers of the rule for this update, as its function in C, and ``step``, take them."""

    @abstractmethod
    def step(self, *constants: Array) -> Step:
        """The step in NumPy with these constants, 0-d arrays of the parameters' dtype."""


class SGDKernel(Kernel):
    """Momentum as in Sutskever et al. 2013, "On the importance of initialization and momentum in deep
    learning", in torch's form: the learning rate is applied to the buffer, not kept in it.
    """

    def __init__(self, optimizer: api.SGD) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self.rule = "momentum" if optimizer.momentum else "sgd"
        if optimizer.momentum:
            self.slots = ("momentum_buffer",)

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        if not self.slots:
            return (lr,)
        momentum, intake = self.optimizer.momentum, 1 - self.optimizer.dampening
        return lr, momentum, intake, self.optimizer.nesterov, update == 1  # dampening does not apply yet

    def step(self, *constants: Array) -> Step:
        def plain(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            np.multiply(grad, constants[0], out=out)

        def with_momentum(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            rate, momentum, intake, nesterov, first = constants
            (old,), (buffer,) = slots, after
            if first:
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
        self.rule = "amsgrad" if optimizer.amsgrad else "adam"
        self.slots = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * optimizer.amsgrad
        if isinstance(optimizer, api.AdamW):
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        beta1, beta2 = self.optimizer.betas
        root_correction2 = math.sqrt(1 - beta2**update)
        rate = lr / (1 - beta1**update) * root_correction2
        return rate, self.optimizer.eps * root_correction2, 1 - beta1, 1 - beta2, beta2

    def step(self, *constants: Array) -> Step:
        rate, eps, intake1, intake2, keep2 = constants
        keep1 = np.array(1 - float(intake1), intake1.dtype)  # torch.lerp rounds 1 - beta1 first
        slow = float(intake1) < 0.5

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
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

    rule = "adagrad"
    slots = ("sum",)

    def __init__(self, optimizer: api.Adagrad) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self.initial = optimizer.initial_accumulator_value

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        return lr / (1 + (update - 1) * self.optimizer.lr_decay), self.optimizer.eps

    def step(self, *constants: Array) -> Step:
        rate, eps = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old,), (total,) = slots, after
            np.multiply(grad, grad, out=out)
            np.add(old, out, out=total)
            np.sqrt(total, out=out)
            np.add(out, eps, out=out)
            np.divide(grad, out, out=out)
            np.multiply(out, rate, out=out)

        return step


class FtrlKernel(Kernel):
    """McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", algorithm 1.

    Its ``w`` is the weight as it is stored, which may begin elsewhere than at 0. A weight whose ``z`` is
    within l1 becomes exactly 0. With a learning rate of 0 neither weights nor slots change.
    """

    rule = "ftrl"
    slots = ("n", "z")

    def __init__(self, optimizer: api.Ftrl) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self.coupled_decay = 0.0  # weight_decay is lambda_2, in ``constants``

    def numbers(self, lr: float, update: int, grad_scale: float) -> tuple[float, ...]:
        factor, decay, _, *constants = super().numbers(lr, update, grad_scale)
        if lr == 0:  # no gradient is taken in, and the step is divided by infinity
            return 0.0, decay, 1.0, *constants
        return factor, decay, 0.0, *constants  # weights follow from the slots, not from weights

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        l1, l2, beta = self.optimizer.l1, self.optimizer.weight_decay, self.optimizer.beta
        return (1 / lr, beta / lr + l2, l1) if lr else (0.0, math.inf, l1)

    def step(self, *constants: Array) -> Step:
        inverse, least, l1 = constants
        below = np.negative(l1)

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old_n, old_z), (n, z) = slots, after
            np.sqrt(old_n, out=out)
            root = np.multiply(grad, grad)
            np.add(old_n, root, out=n)
            np.sqrt(n, out=root)
            np.subtract(root, out, out=out)
            np.multiply(out, inverse, out=out)  # sigma
            np.multiply(out, params, out=out)
            np.add(old_z, grad, out=z)
            np.subtract(z, out, out=z)

            np.maximum(z, below, out=out)
            np.minimum(out, l1, out=out)
            np.subtract(z, out, out=out)
            np.add(out, 0, out=out)  # +0: which zero np.maximum returns, NumPy does not say
            np.multiply(root, inverse, out=root)
            np.add(root, least, out=root)
            np.divide(out, root, out=out, where=out != 0)  # without beta, 0 may be divided by 0

        return step


def kernel_for(optimizer: api.Optimizer) -> Kernel:
    """The kernel that updates as ``optimizer`` says; the learning rate comes with each update."""
    if isinstance(optimizer, api.SGD):
        return SGDKernel(optimizer)
    if isinstance(optimizer, api.Adagrad):
        return AdagradKernel(optimizer)
    if isinstance(optimizer, api.Ftrl):
        return FtrlKernel(optimizer)
    return AdamKernel(optimizer)


def squared_norm(grad: Array) -> float:
    """Sum of the squares of a chunk, (n,), in float64.

    Equal bytes give equal bits wherever they lie: squares are added, block by block and element by element,
    to an aligned block, which is summed at the end. (BLAS's ``dot`` and reductions over the chunk itself may
    group terms by alignment, threads or processor.)
    """
    sums = aligned_empty(8 * max(1, min(grad.size, BLOCK_BYTES // 8))).view(np.float64)
    sums.fill(0)
    (native.add_squares if native.takes(grad) else add_squares_with_numpy)(grad, sums)
    with np.errstate(all="ignore"):
        return float(np.add.reduce(sums))


def add_squares_with_numpy(grad: Array, sums: npt.NDArray[np.float64]) -> None:
    """``native.add_squares`` where C cannot, and what its bits have to be."""
    squares = aligned_empty(sums.nbytes).view(np.float64)
    with np.errstate(all="ignore"):
        for start in range(0, grad.size, sums.size):
            block = grad[start : start + sums.size]
            s, total = squares[: block.size], sums[: block.size]
            np.copyto(s, block)
            np.multiply(s, s, out=s)
            np.add(total, s, out=total)


def clip_scale(total_norm: float, clip_norm: float) -> float:
    """The factor ``torch.nn.utils.clip_grad_norm_`` puts on gradients of this norm; at most 1.

    A norm that is NaN gives NaN, as in torch.
    """
    return min(clip_norm / (total_norm + 1e-6), 1.0)  # in this order min passes NaN on
