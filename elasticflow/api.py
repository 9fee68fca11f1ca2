"""What a program names besides its framework: the optimizers.

Arguments have the names, defaults and meaning they have in ``torch.optim``, whatever the framework
of the program; ``clip_norm`` is ``torch.nn.utils.clip_grad_norm_``'s ``max_norm`` over all parameters
together. The update itself runs on the parameter servers (``elasticflow_ps.optimizers``).
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeAlias

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


class _Optimizer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """lr: learning rate, >= 0; clip_norm: None, or the largest allowed norm of all gradients together."""

    lr: float
    weight_decay: float = 0.0
    maximize: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        _take(kind, self, ("lr", "weight_decay"), "a number >= 0, and finite", 0)
        _take_switches(kind, self, ("maximize",))
        if self.clip_norm is not None:
            _take(kind, self, ("clip_norm",), "a number > 0, and finite, or None", 0)
            _require(kind, self.clip_norm > 0, "clip_norm", self.clip_norm, "a number > 0, or None")

    def settings(self) -> dict[str, Any]:
        """All arguments by name, for a manifest or a message to a person."""
        return {"optimizer": type(self).__name__, **msgspec.structs.asdict(self)}


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
        betas: Any = self.betas
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2
        fits = pair and all(is_number(each, 0, 1) and each < 1 for each in betas)
        _require(kind, fits, "betas", betas, "two numbers in [0, 1)")
        force_setattr(self, "betas", tuple(map(float, betas)))
        _take(kind, self, ("eps",), "a number >= 0, and finite", 0)
        _take_switches(kind, self, ("amsgrad",))


class AdamW(Adam, frozen=True, kw_only=True, tag=True):
    """``torch.optim.AdamW``: weight decay shrinks the parameters directly."""

    weight_decay: float = 1e-2


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


class Ftrl(_Optimizer, frozen=True, kw_only=True, tag=True):
    """FTRL-Proximal, for sparse linear models: l1 makes weights exactly 0.

    Source: McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1, with alpha
    = lr and beta as there. weight_decay is its lambda_2, l1 its lambda_1.
    """

    lr: float = 0.05
    beta: float = 1.0
    l1: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("Ftrl", self.lr > 0, "lr", self.lr, "a number > 0")
        _take("Ftrl", self, ("beta", "l1"), "a number >= 0, and finite", 0)


Optimizer: TypeAlias = SGD | Adam | AdamW | Adagrad | Ftrl
