"""What a program names besides its framework: the optimizers.

Arguments have the names, defaults and meaning they have in ``torch.optim``, whatever the framework
of the program; those of Lion, which is not there, are Keras's. ``clip_norm`` is
``torch.nn.utils.clip_grad_norm_``'s ``max_norm`` over all parameters together, ``clip_value`` is
``clip_grad_value_``'s. The update itself runs on the parameter servers (``elasticflow_ps.optimizers``).
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import force_setattr

from elasticflow.errors import ProgramError

HUGE = 1e38
"""Beyond this a float32 is infinite."""


def _require(kind: str, ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ProgramError(f"{kind}({name}={value!r}): {name} must be {allowed}.")


def is_number(value: object, least: float = -HUGE, most: float = HUGE) -> bool:
    """Whether it is one number, whatever its type, in this range: neither NaN nor infinite."""
    found: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    return bool(least <= found <= most)


def _take(kind: str, struct: msgspec.Struct, names: tuple[str, ...], allowed: str, least: float) -> None:
    """Makes these fields floats: NumPy's, and whole numbers of any size, cannot be told to others."""
    for name in names:
        value = getattr(struct, name)
        _require(kind, is_number(value, least), name, value, allowed)
        force_setattr(struct, name, float(value))


def _take_switches(kind: str, struct: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(struct, name)
        _require(kind, value in (False, True) and not isinstance(value, float), name, value, "True or False")
        force_setattr(struct, name, bool(value))


def _take_share(struct: msgspec.Struct, name: str) -> None:
    value = getattr(struct, name)
    fits = is_number(value, 0, 1) and value < 1
    _require(type(struct).__name__, fits, name, value, "a number in [0, 1)")
    force_setattr(struct, name, float(value))


def _take_shares(kind: str, struct: msgspec.Struct, name: str) -> None:
    """Makes this field two floats in [0, 1)."""
    found: Any = getattr(struct, name)
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    fits = pair and all(is_number(each, 0, 1) and each < 1 for each in found)
    _require(kind, fits, name, found, "two numbers in [0, 1)")
    force_setattr(struct, name, tuple(map(float, found)))


class _Optimizer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """lr: learning rate, >= 0; clip_norm: None, or the largest allowed norm of all gradients together.

    clip_value: None, or the largest allowed size of each element of the gradient. ema: None, or a number in
    [0, 1): the share that an exponential moving average of each parameter keeps in an update; it is the first
    value after one. form: whose formula, where the two differ: in where ``eps`` stands, in whether momentum
    keeps the learning rate, and in weight decay, which Keras always takes from the parameters directly.
    """

    lr: float
    weight_decay: float = 0.0
    maximize: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None
    form: Literal["torch", "keras"] = "torch"

    def __post_init__(self) -> None:
        kind = type(self).__name__
        schedule = "a number; one that changes is the program's: learning_rate = ef.lr.cosine(1e-3), say"
        _require(kind, not callable(self.lr), "lr", self.lr, schedule)
        _take(kind, self, ("lr", "weight_decay"), "a number >= 0, and finite", 0)
        _take_switches(kind, self, ("maximize",))
        for name in ("clip_norm", "clip_value"):
            limit = getattr(self, name)
            if limit is not None:
                _take(kind, self, (name,), "a number > 0, and finite, or None", 0)
                _require(kind, limit > 0, name, limit, "a number > 0, or None")
        both = self.clip_norm is not None and self.clip_value is not None
        _require(kind, not both, "clip_value", self.clip_value, "None where there is a clip_norm")
        if self.ema is not None:
            _take_share(self, "ema")
        _require(kind, self.form in ("torch", "keras"), "form", self.form, "'torch' or 'keras'")

    def settings(self) -> dict[str, Any]:
        """All arguments by name, for a manifest or a message to a person; without those that say nothing."""
        usual = {"clip_value": None, "ema": None, "form": "torch"}
        named = msgspec.structs.asdict(self).items()
        told = {name: value for name, value in named if name not in usual or value != usual[name]}
        return {"optimizer": type(self).__name__, **told}


class SGD(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.SGD``: plain, with momentum, or Nesterov."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("SGD", self, ("momentum",), "a number >= 0, and finite", 0)
        _take("SGD", self, ("dampening",), "a finite number", -HUGE)
        _take_switches("SGD", self, ("nesterov",))
        plain = self.momentum > 0 and self.dampening == 0
        _require(
            "SGD", not self.nesterov or plain, "nesterov", True, "False without momentum or with dampening"
        )


class Adam(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.Adam``: weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        _take_shares(kind, self, "betas")
        _take(kind, self, ("eps",), "a number >= 0, and finite", 0)
        _take_switches(kind, self, ("amsgrad",))


class AdamW(Adam, frozen=True, kw_only=True, tag=True):
    """``torch.optim.AdamW``: weight decay shrinks the parameters directly."""

    weight_decay: float = 1e-2


class LAMB(_Optimizer, frozen=True, kw_only=True, tag=True):
    """Adam, whose learning rate is multiplied, for each tensor, by its norm over that of its update.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020,
    algorithm 2, with the norm itself as phi; weight decay is part of the update. Where a norm is 0: by 1.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        _take_shares("LAMB", self, "betas")
        _take("LAMB", self, ("eps",), "a number >= 0, and finite", 0)


class LARS(_Optimizer, frozen=True, kw_only=True, tag=True):
    """SGD, whose learning rate is multiplied, for each tensor, by ``trust_coefficient`` times its norm, over
    that of its gradient plus ``weight_decay`` times its own.

    Source: You et al., "Large Batch Training of Convolutional Networks", 2017, algorithm 1: momentum keeps
    the learning rate, and weight decay is added to the gradient. Where a norm is 0: by 1.
    """

    lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False
    trust_coefficient: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("LARS", self, ("momentum", "trust_coefficient"), "a number >= 0, and finite", 0)
        _take_switches("LARS", self, ("nesterov",))
        _require("LARS", not self.nesterov or self.momentum > 0, "nesterov", True, "False without momentum")
        _require("LARS", self.clip_value is None, "clip_value", self.clip_value, "None; there is clip_norm")


class Adagrad(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.Adagrad``."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        _take(
            "Adagrad", self, ("lr_decay", "initial_accumulator_value", "eps"), "a number >= 0, and finite", 0
        )


class RMSprop(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.RMSprop``."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("RMSprop", self, ("eps", "momentum"), "a number >= 0, and finite", 0)
        _take_share(self, "alpha")
        _take_switches("RMSprop", self, ("centered",))


class Adadelta(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.Adadelta``."""

    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("Adadelta", self, ("eps",), "a number >= 0, and finite", 0)
        _take_share(self, "rho")


class Adamax(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.Adamax``."""

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _take_shares("Adamax", self, "betas")
        _take("Adamax", self, ("eps",), "a number >= 0, and finite", 0)


class _Decoupling(_Optimizer, frozen=True, kw_only=True, tag=True):
    """decoupled_weight_decay: whether weight decay shrinks the parameters directly."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        _take_shares(kind, self, "betas")
        _take(kind, self, ("eps",), "a number >= 0, and finite", 0)
        _take_switches(kind, self, ("decoupled_weight_decay",))


class NAdam(_Decoupling, frozen=True, kw_only=True, tag=True):
    """``torch.optim.NAdam``."""

    lr: float = 2e-3
    momentum_decay: float = 4e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("NAdam", self, ("momentum_decay",), "a number >= 0, and finite", 0)


class RAdam(_Decoupling, frozen=True, kw_only=True, tag=True):
    """``torch.optim.RAdam``."""

    lr: float = 1e-3


class Lion(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``keras.optimizers.Lion``: weight decay shrinks the parameters directly.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, algorithm 2.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        _take_shares("Lion", self, "betas")


class ASGD(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.ASGD``: averages the parameters from update ``t0`` on.

    An update takes the learning rate of its own step, where torch takes that of the step before.
    """

    lr: float = 1e-2
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        _take("ASGD", self, ("lambd", "alpha", "t0"), "a number >= 0, and finite", 0)


class Rprop(_Optimizer, frozen=True, kw_only=True, tag=True):
    """``torch.optim.Rprop``. lr: the first size of a step; ``learning_rate()`` has no say in the others."""

    lr: float = 1e-2
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, between, allowed in (
            ("etas", 0, 1, "two numbers with 0 < the first < 1 < the second"),
            ("step_sizes", 0, None, "two numbers with 0 < the first <= the second"),
        ):
            found: Any = getattr(self, name)
            pair = isinstance(found, (tuple, list)) and len(found) == 2
            fits = pair and all(is_number(each, least) for each in found) and 0 < found[0] <= found[1]
            fits = fits and (between is None or found[0] < between < found[1])
            _require("Rprop", fits, name, found, allowed)
            force_setattr(self, name, tuple(map(float, found)))
        _require("Rprop", not self.weight_decay, "weight_decay", self.weight_decay, "0")


class Ftrl(_Optimizer, frozen=True, kw_only=True, tag=True):
    """FTRL-Proximal, for sparse linear models: l1 makes weights exactly 0.

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1, with alpha
    = lr and beta as there. weight_decay is its lambda_2, l1 its lambda_1.
    """

    lr: float = 0.05
    beta: float = 1.0
    l1: float = 0.0
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("Ftrl", self.lr > 0, "lr", self.lr, "a number > 0")
        _take("Ftrl", self, ("beta", "l1", "initial_accumulator_value"), "a number >= 0, and finite", 0)


Optimizer: TypeAlias = (
    SGD | Adam | AdamW | Adagrad | Ftrl | RMSprop | Adadelta | Adamax | NAdam | RAdam | Lion | ASGD | Rprop
    | LAMB | LARS
)  # fmt: skip
PER_TENSOR = (LAMB, LARS)
"""Those whose learning rate is another one for each tensor: it follows from norms over all of it."""
OPTIMIZERS = tuple(kind.__name__ for kind in get_args(Optimizer))

WHOLE_TENSOR = "its update of an element needs the whole tensor, of which a server has a part"
OTHERS: dict[str, str] = {
    "Adafactor": f"{WHOLE_TENSOR}: means over rows and columns",
    "LBFGS": "it computes the cost several times an update, where a step is one gradient",
    "LossScaleOptimizer": "costs are not scaled: compute in bfloat16, which needs none of that",
    "Muon": f"{WHOLE_TENSOR}: its gradient is made orthogonal",
    "ScheduleFreeAdamW": "what it computes gradients from is no parameter; name ef.AdamW with an ema",
    "Shampoo": f"{WHOLE_TENSOR}: products of its gradient with itself",
    "SparseAdam": "rows that are looked up are what ef.Embedding is for, with ef.Adam",
}
"""Optimizers that there are not, and why; by the names they have elsewhere."""
