"""What a program names besides its framework: the optimizers.

Arguments have the names, defaults and meaning they have in ``torch.optim``, whatever the framework
of the program; ``clip_norm`` is ``torch.nn.utils.clip_grad_norm_``'s ``max_norm`` over all parameters
together. The update itself runs on the parameter servers (``elasticflow_ps.optimizers``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from elasticflow.errors import ProgramError


def _require(kind: str, ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ProgramError(f"{kind}({name}={value!r}): {name} must be {allowed}.")


class _Optimizer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """lr: learning rate, >= 0; clip_norm: None, or the largest allowed norm of all gradients together."""

    lr: float
    weight_decay: float = 0.0
    maximize: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            _require(kind, isinstance(value, (int, float)) and value >= 0, name, value, "a number >= 0")
        if self.clip_norm is not None:
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
        _require("SGD", self.momentum >= 0, "momentum", self.momentum, "a number >= 0")
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
        _require(kind, all(0 <= b < 1 for b in self.betas), "betas", self.betas, "two numbers in [0, 1)")
        _require(kind, self.eps >= 0, "eps", self.eps, "a number >= 0")


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
        for name in ("lr_decay", "initial_accumulator_value", "eps"):
            value = getattr(self, name)
            _require("Adagrad", value >= 0, name, value, "a number >= 0")


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
        for name in ("beta", "l1"):
            value = getattr(self, name)
            _require("Ftrl", value >= 0, name, value, "a number >= 0")


Optimizer: TypeAlias = SGD | Adam | AdamW | Adagrad | Ftrl
