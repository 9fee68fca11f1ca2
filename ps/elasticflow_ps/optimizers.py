"""The update of one chunk on a parameter server: ``torch.optim``, Lion and FTRL, in C or in NumPy.

Only ``+ - * /``, ``sqrt``, ``maximum`` and ``minimum`` touch the elements. IEEE 754 fixes their results to
the last bit (NaN's payload apart), so an element's next value depends on that element alone: not on where
a chunk begins or ends, on alignment, on threads, or on the machine; and C (``native.c``) and NumPy give the
same bits. Fused multiply-adds would break this (vector body against scalar tail).

Formulas and their order follow ``torch.optim``'s single-tensor functions. Where torch fuses multiply-adds, as
it does on processors that can, its last bits are others. Where it does not (``ATEN_CPU_CAPABILITY=default``),
SGD's bits are the same in all its forms; those of Adam and Adagrad are not, because torch multiplies by
``1 - beta2`` and by the learning rate before it squares and divides, and has Adam's bias correction in each
element instead of in the learning rate. FTRL and Lion are not in torch. Keras's formulas are the same, with
other numbers.

NumPy works through a chunk block by block, so that what one pass over a block leaves behind is still in cache
for the next, and writes no temporaries but one block of its own, two with FTRL. C takes a single pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elasticflow import api
from elasticflow.step.layout import Array, aligned_empty
from elasticflow_ps.kernel import BLOCK_BYTES, AnyKernel, Kernel, PerTensorKernel, Slots, Step, lerp
from elasticflow_ps.norms import Squares, squared_norm


class SGDKernel(Kernel[api.SGD]):
    """Momentum as in Sutskever et al. 2013, "On the importance of initialization and momentum in deep
    learning": the learning rate is applied to the buffer, or, as Keras does, kept in it.
    """

    def __init__(self, optimizer: api.SGD) -> None:
        super().__init__(optimizer)
        self.rule = "momentum" if optimizer.momentum else "sgd"
        if optimizer.momentum:
            self.rule_slots = ("momentum_buffer",)

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        if not self.rule_slots:
            return (lr,)
        momentum, nesterov = self.optimizer.momentum, self.optimizer.nesterov
        intake = 1 - self.optimizer.dampening
        if self.optimizer.form == "keras":
            return 1.0, momentum, intake * lr, nesterov, False, lr
        return lr, momentum, intake, nesterov, update == 1, 1.0  # at first dampening does not apply

    def step(self, *constants: Array) -> Step:
        return momentum_step(*constants) if self.rule_slots else sgd_step(*constants)


def sgd_step(rate: Array) -> Step:
    """Of SGD without momentum."""

    def step(params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
        np.multiply(grad, rate, out=out)

    return step


def momentum_step(
    rate: Array, momentum: Array, intake: Array, nesterov: Array, first: Array, newest: Array
) -> Step:
    """Of SGD with momentum."""

    def step(params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
        (old,), (buffer,) = slots, after
        if first:
            np.copyto(buffer, grad)
        else:
            np.multiply(old, momentum, out=buffer)
            taken = grad if intake == 1 else np.multiply(grad, intake, out=out)
            np.add(buffer, taken, out=buffer)
        if nesterov:
            np.multiply(buffer, momentum, out=out)
            np.add(grad if newest == 1 else np.multiply(grad, newest), out, out=out)
            np.multiply(out, rate, out=out)
        else:
            np.multiply(buffer, rate, out=out)

    return step


class AdamKernel(Kernel[api.Adam]):
    """Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1, computed in the
    order of the end of section 2; AMSGrad from Reddi et al. 2018, "On the Convergence of Adam and
    Beyond"; for ``api.AdamW``, Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
    """

    def __init__(self, optimizer: api.Adam) -> None:
        super().__init__(optimizer)
        self.rule = "amsgrad" if optimizer.amsgrad else "adam"
        self.rule_slots = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * optimizer.amsgrad
        if isinstance(optimizer, api.AdamW):
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        of_keras = self.optimizer.form == "keras"
        return _adam_constants(lr, update, self.optimizer.betas, self.optimizer.eps, of_keras=of_keras)

    def step(self, *constants: Array) -> Step:
        return adam_step(*constants)


def _adam_constants(
    lr: float, update: int, betas: tuple[float, float], eps: float, *, of_keras: bool = False
) -> tuple[float, ...]:
    beta1, beta2 = betas
    root_correction2 = math.sqrt(1 - beta2**update)
    rate = lr / (1 - beta1**update) * root_correction2
    return rate, eps * (1 if of_keras else root_correction2), 1 - beta1, 1 - beta2, beta2


def adam_step(rate: Array, eps: Array, intake1: Array, intake2: Array, keep2: Array) -> Step:
    """Of Adam, and of AMSGrad where there is a slot for the largest."""

    def step(params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array) -> None:
        (old_mean, old_square, *old_largest), (mean, square, *largest) = slots, after
        lerp(old_mean, grad, intake1, out, mean)
        decayed_square(old_square, grad, keep2, intake2, out, square)
        for old_top, top in zip(old_largest, largest, strict=True):
            square = np.maximum(old_top, square, out=top)

        np.sqrt(square, out=out)
        np.add(out, eps, out=out)
        np.divide(mean, out, out=out)
        np.multiply(out, rate, out=out)

    return step


class LAMBKernel(PerTensorKernel[api.LAMB]):
    """AdamW with the learning rate that ``trust`` makes of it: with that it is the same formula."""

    rule = "adam"
    rule_slots = ("exp_avg", "exp_avg_sq")

    def __init__(self, optimizer: api.LAMB) -> None:
        super().__init__(optimizer)
        self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        return _adam_constants(lr, update, self.optimizer.betas, self.optimizer.eps)

    def step(self, *constants: Array) -> Step:
        return adam_step(*constants)

    def trust(self, weights: float, change: float) -> float:
        return weights / change if weights and change else 1.0

    def squared_norms(
        self, params: Array, grad: Array, slots: Slots, *, update: int, grad_scale: float
    ) -> tuple[float, float]:
        # Parameters times -decay, minus Adam's step with a learning rate of 1: what LAMB subtracts, negative.
        factor, decay, _, bound, *constants = self.numbers(1.0, update, grad_scale)
        numbers = factor, decay, -self.decoupled_decay, bound, *constants
        spares = [aligned_empty(min(BLOCK_BYTES, params.nbytes)).view(params.dtype) for _ in range(3)]
        length, changes = BLOCK_BYTES // params.itemsize, Squares(params.size)
        for start in range(0, params.size, length):
            block = slice(start, start + length)
            p, g = params[block], grad[block]
            before = [slots[name][block] for name in self.rule_slots]
            out, *after = (spare[: p.size] for spare in spares)
            self._apply(self.rule, p, g, out, before, after, numbers)
            changes.add(out)
        return squared_norm(params), changes.total


class LARSKernel(PerTensorKernel[api.LARS]):
    """SGD with the learning rate that ``trust`` makes of it, which momentum keeps, as Keras's does."""

    def __init__(self, optimizer: api.LARS) -> None:
        super().__init__(optimizer)
        self.coupled_decay, self.decoupled_decay = optimizer.weight_decay, 0.0
        self.rule = "momentum" if optimizer.momentum else "sgd"
        if optimizer.momentum:
            self.rule_slots = ("momentum_buffer",)

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        if not self.rule_slots:
            return (lr,)
        return 1.0, self.optimizer.momentum, lr, self.optimizer.nesterov, False, lr

    def step(self, *constants: Array) -> Step:
        return momentum_step(*constants) if self.rule_slots else sgd_step(*constants)

    def trust(self, weights: float, change: float) -> float:
        if not weights or not change:
            return 1.0
        return self.optimizer.trust_coefficient * weights / (change + self.coupled_decay * weights)

    def squared_norms(
        self, params: Array, grad: Array, slots: Slots, *, update: int, grad_scale: float
    ) -> tuple[float, float]:
        return squared_norm(params), squared_norm(grad) * grad_scale**2


class AdagradKernel(Kernel[api.Adagrad]):
    """Duchi et al. 2011, "Adaptive Subgradient Methods", diagonal; ``lr_decay`` as in torch."""

    rule = "adagrad"
    rule_slots = ("sum",)

    def __init__(self, optimizer: api.Adagrad) -> None:
        super().__init__(optimizer)
        self.initials = {"sum": optimizer.initial_accumulator_value}

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        return lr / (1 + (update - 1) * self.optimizer.lr_decay), *_inside_or_out(self.optimizer)

    def step(self, *constants: Array) -> Step:
        rate, inside, eps = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old,), (total,) = slots, after
            np.multiply(grad, grad, out=out)
            np.add(old, out, out=total)
            np.add(total, inside, out=out)
            np.sqrt(out, out=out)
            np.add(out, eps, out=out)
            np.divide(grad, out, out=out)
            np.multiply(out, rate, out=out)

        return step


class FtrlKernel(Kernel[api.Ftrl]):
    """McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", algorithm 1.

    Its ``w`` is the weight as it is stored, which may begin elsewhere than at 0. A weight whose ``z`` is
    within l1 becomes exactly 0. With a learning rate of 0 neither weights nor slots change.
    """

    rule = "ftrl"
    rule_slots = ("n", "z")

    def __init__(self, optimizer: api.Ftrl) -> None:
        super().__init__(optimizer)
        self.coupled_decay = self.decoupled_decay = 0.0  # weight_decay is lambda_2, in ``constants``
        self.initials = {"n": optimizer.initial_accumulator_value}

    def numbers(self, lr: float, update: int, grad_scale: float) -> tuple[float, ...]:
        factor, decay, _, *others = super().numbers(lr, update, grad_scale)
        if lr == 0:  # no gradient is taken in, and the step is divided by infinity
            return 0.0, decay, 1.0, *others
        return factor, decay, 0.0, *others  # weights follow from the slots, not from weights

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


class RMSpropKernel(Kernel[api.RMSprop]):
    """Tieleman and Hinton 2012, Coursera lecture 6.5; centered as in Graves 2013, "Generating Sequences With
    Recurrent Neural Networks", section 4.2.
    """

    def __init__(self, optimizer: api.RMSprop) -> None:
        super().__init__(optimizer)
        self.rule = "rmsprop" + "_centered" * optimizer.centered + "_momentum" * bool(optimizer.momentum)
        self.rule_slots = (
            "square_avg",
            *("grad_avg",) * optimizer.centered,
            *("momentum_buffer",) * bool(optimizer.momentum),
        )

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        keep, momentum = self.optimizer.alpha, self.optimizer.momentum
        rates = (lr, 1.0) if momentum and self.optimizer.form == "keras" else (1.0, lr)
        return keep, 1 - keep, *_inside_or_out(self.optimizer), momentum, *rates

    def step(self, *constants: Array) -> Step:
        keep, intake, inside, eps, momentum, kept_rate, rate = constants
        centered, with_momentum = self.optimizer.centered, bool(self.optimizer.momentum)

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            decayed_square(slots[0], grad, keep, intake, out, after[0])
            if centered:
                lerp(slots[1], grad, intake, out, after[1])
                np.multiply(after[1], after[1], out=out)
                np.subtract(after[0], out, out=out)
                np.add(out, inside, out=out)
            else:
                np.add(after[0], inside, out=out)
            np.sqrt(out, out=out)
            np.add(out, eps, out=out)
            np.divide(grad, out, out=out)
            if with_momentum:
                np.multiply(out, kept_rate, out=out)
                np.multiply(slots[-1], momentum, out=after[-1])
                np.add(after[-1], out, out=after[-1])
                np.multiply(after[-1], rate, out=out)
            else:
                np.multiply(out, rate, out=out)

        return step


class AdadeltaKernel(Kernel[api.Adadelta]):
    """Zeiler 2012, "ADADELTA: An Adaptive Learning Rate Method", algorithm 1."""

    rule = "adadelta"
    rule_slots = ("square_avg", "acc_delta")

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        keep = self.optimizer.rho
        return keep, 1 - keep, self.optimizer.eps, lr

    def step(self, *constants: Array) -> Step:
        keep, intake, eps, rate = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old_square, old_change), (square, change) = slots, after
            decayed_square(old_square, grad, keep, intake, out, square)
            root = np.add(square, eps)
            np.sqrt(root, out=root)
            np.add(old_change, eps, out=out)
            np.sqrt(out, out=out)
            np.divide(out, root, out=out)
            np.multiply(out, grad, out=out)
            decayed_square(old_change, out, keep, intake, root, change)
            np.multiply(out, rate, out=out)

        return step


class AdamaxKernel(Kernel[api.Adamax]):
    """Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 2."""

    rule = "adamax"
    rule_slots = ("exp_avg", "exp_inf")

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        beta1, beta2 = self.optimizer.betas
        eps, of_keras = self.optimizer.eps, self.optimizer.form == "keras"
        return 1 - beta1, beta2, 0 if of_keras else eps, eps if of_keras else 0, lr / (1 - beta1**update)

    def step(self, *constants: Array) -> Step:
        intake1, keep2, least, eps, rate = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old_mean, old_norm), (mean, norm) = slots, after
            lerp(old_mean, grad, intake1, out, mean)
            np.abs(grad, out=out)
            np.add(out, least, out=out)
            np.multiply(old_norm, keep2, out=norm)
            np.maximum(norm, out, out=norm)
            np.add(norm, eps, out=out)
            np.divide(mean, out, out=out)
            np.multiply(out, rate, out=out)

        return step


class NAdamKernel(Kernel[api.NAdam]):
    """Dozat 2016, "Incorporating Nesterov Momentum into Adam", in torch's form, of which Keras's is that with
    ``momentum_decay=1``.
    """

    rule = "nadam"
    rule_slots = ("exp_avg", "exp_avg_sq")

    def __init__(self, optimizer: api.NAdam) -> None:
        super().__init__(optimizer)
        if optimizer.decoupled_weight_decay:
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay
        self._products = [1.0]
        """Of the momenta of the updates 1 to i: always the same ones in the same order."""

    def _momentum(self, update: int) -> float:
        shift: float = 0.96 ** (update * self.optimizer.momentum_decay)
        return self.optimizer.betas[0] * (1 - 0.5 * shift)

    def _product(self, update: int) -> float:
        products = self._products
        if len(products) <= update:  # in a list of its own: other threads may be here
            products = products.copy()
            while len(products) <= update:
                products.append(products[-1] * self._momentum(len(products)))
            self._products = products
        return products[update]

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        beta1, beta2 = self.optimizer.betas
        root_correction2 = math.sqrt(1 - beta2**update)
        of_grad = lr * (1 - self._momentum(update)) / (1 - self._product(update)) * root_correction2
        of_mean = lr * self._momentum(update + 1) / (1 - self._product(update + 1)) * root_correction2
        return of_grad, of_mean, self.optimizer.eps * root_correction2, 1 - beta1, 1 - beta2, beta2

    def step(self, *constants: Array) -> Step:
        of_grad, of_mean, eps, intake1, intake2, keep2 = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old_mean, old_square), (mean, square) = slots, after
            lerp(old_mean, grad, intake1, out, mean)
            decayed_square(old_square, grad, keep2, intake2, out, square)
            root = np.sqrt(square)
            np.add(root, eps, out=root)
            np.multiply(grad, of_grad, out=out)
            np.add(out, np.multiply(mean, of_mean), out=out)
            np.divide(out, root, out=out)

        return step


class RAdamKernel(Kernel[api.RAdam]):
    """Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and Beyond", algorithm 2: Adam, once
    there were gradients enough to know a variance; before that momentum alone.
    """

    rule = "adam"
    rule_slots = ("exp_avg", "exp_avg_sq")

    def __init__(self, optimizer: api.RAdam) -> None:
        super().__init__(optimizer)
        if optimizer.decoupled_weight_decay:
            self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def _rectification(self, update: int) -> float:
        """r_t; 0 where the variance is not known."""
        beta2 = self.optimizer.betas[1]
        most = 2 / (1 - beta2) - 1
        length = most - 2 * update * beta2**update / (1 - beta2**update)
        if length <= 5:
            return 0.0
        return math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))

    def rule_at(self, update: int) -> str | None:
        return self.rule if self._rectification(update) else None

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        beta1, beta2 = self.optimizer.betas
        rate, rectification = lr / (1 - beta1**update), self._rectification(update)
        if rectification:
            rate *= rectification * math.sqrt(1 - beta2**update)
        return rate, self.optimizer.eps, 1 - beta1, 1 - beta2, beta2, rectification > 0

    def step(self, *constants: Array) -> Step:
        *of_adam, rectified = constants
        rate, _, intake1, intake2, keep2 = of_adam

        def with_momentum(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            lerp(slots[0], grad, intake1, out, after[0])
            decayed_square(slots[1], grad, keep2, intake2, out, after[1])
            np.multiply(after[0], rate, out=out)

        return adam_step(*of_adam) if rectified else with_momentum


class LionKernel(Kernel[api.Lion]):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    rule = "lion"
    rule_slots = ("exp_avg",)

    def __init__(self, optimizer: api.Lion) -> None:
        super().__init__(optimizer)
        self.coupled_decay, self.decoupled_decay = 0.0, optimizer.weight_decay

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        beta1, beta2 = self.optimizer.betas
        return lr, beta1, 1 - beta1, beta2, 1 - beta2

    def step(self, *constants: Array) -> Step:
        rate, keep1, intake1, keep2, intake2 = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old,), (mean,) = slots, after
            taken = np.multiply(grad, intake1)
            np.multiply(old, keep1, out=out)
            np.add(out, taken, out=out)
            np.sign(out, out=out)
            np.multiply(out, rate, out=out)
            np.multiply(grad, intake2, out=taken)
            np.multiply(old, keep2, out=mean)
            np.add(mean, taken, out=mean)

        return step


class ASGDKernel(Kernel[api.ASGD]):
    """Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging", in torch's form."""

    rule = "sgd"

    def __init__(self, optimizer: api.ASGD) -> None:
        super().__init__(optimizer)
        self.averages = {"ax": self._weight, **self.averages}

    def _weight(self, update: int) -> float:
        return 1 / max(1.0, update - 1 - self.optimizer.t0)

    def _rate(self, lr: float, update: int) -> float:
        rate: float = lr / (1 + self.optimizer.lambd * lr * (update - 1)) ** self.optimizer.alpha
        return rate

    def numbers(self, lr: float, update: int, grad_scale: float) -> tuple[float, ...]:
        factor, decay, shrink, *others = super().numbers(lr, update, grad_scale)
        return factor, decay, shrink * (1 - self.optimizer.lambd * self._rate(lr, update)), *others

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        return (self._rate(lr, update),)

    def step(self, *constants: Array) -> Step:
        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            np.multiply(grad, constants[0], out=out)

        return step


class RpropKernel(Kernel[api.Rprop]):
    """Riedmiller and Braun 1993, "A Direct Adaptive Method for Faster Backpropagation Learning", in torch's
    form, where a gradient that has turned is taken for 0.
    """

    rule = None
    rule_slots = ("prev", "step_size")

    def __init__(self, optimizer: api.Rprop) -> None:
        super().__init__(optimizer)
        self.initials = {"step_size": optimizer.lr}

    def constants(self, lr: float, update: int) -> tuple[float, ...]:
        return *self.optimizer.etas, *self.optimizer.step_sizes

    def step(self, *constants: Array) -> Step:
        shrink, grow, smallest, largest = constants

        def step(
            params: Array, grad: Array, slots: Sequence[Array], after: Sequence[Array], out: Array
        ) -> None:
            (old_grad, old_size), (kept, size) = slots, after
            np.multiply(grad, old_grad, out=out)
            turned, goes_on = np.less(out, 0), np.greater(out, 0)
            np.copyto(size, old_size)
            np.multiply(size, shrink, out=size, where=turned)
            np.multiply(size, grow, out=size, where=goes_on)
            np.minimum(np.maximum(size, smallest, out=size), largest, out=size)
            np.copyto(kept, grad)
            kept[turned] = 0
            np.sign(kept, out=out)
            np.multiply(out, size, out=out)

        return step


_KERNELS: tuple[tuple[type[api._Optimizer], Callable[[Any], AnyKernel]], ...] = (
    (api.SGD, SGDKernel),
    (api.Adam, AdamKernel),
    (api.Adagrad, AdagradKernel),
    (api.Ftrl, FtrlKernel),
    (api.RMSprop, RMSpropKernel),
    (api.Adadelta, AdadeltaKernel),
    (api.Adamax, AdamaxKernel),
    (api.NAdam, NAdamKernel),
    (api.RAdam, RAdamKernel),
    (api.Lion, LionKernel),
    (api.ASGD, ASGDKernel),
    (api.Rprop, RpropKernel),
    (api.LAMB, LAMBKernel),
    (api.LARS, LARSKernel),
)


def kernel_for(optimizer: api.Optimizer) -> AnyKernel:
    """The kernel that updates as ``optimizer`` says; the learning rate comes with each update."""
    return next(kernel(optimizer) for kind, kernel in _KERNELS if isinstance(optimizer, kind))


def decayed_square(old: Array, values: Array, keep: Array, intake: Array, spare: Array, out: Array) -> None:
    """out := old * keep + values^2 * intake. ``out`` may be ``old``."""
    np.multiply(values, values, out=spare)
    np.multiply(spare, intake, out=spare)
    np.multiply(old, keep, out=out)
    np.add(out, spare, out=out)


def _inside_or_out(optimizer: api.Adagrad | api.RMSprop) -> tuple[float, float]:
    """What is added before a root is taken, and after it: Keras adds ``eps`` before."""
    return (optimizer.eps, 0.0) if optimizer.form == "keras" else (0.0, optimizer.eps)
