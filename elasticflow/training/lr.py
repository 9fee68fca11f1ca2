"""Learning rates that follow from step and epoch, for ``learning_rate`` in a program.

    learning_rate = ef.lr.warmup(500, ef.lr.cosine(1e-3))

Each of these returns a function of (step, epoch), both counted from 0, as the program may define one itself.
One that takes a third argument is told the number of steps of the run, which is fixed with its first.
It is pure, so it does not matter who computes it, or from where a run goes on. What ``on_plateau`` returns is
then multiplied by what evaluations have decided. Raises ProgramError for what cannot be.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TypeAlias

from elasticflow.api import _require, is_number
from elasticflow.errors import ProgramError
from elasticflow.training.standing import Plateau, check_watch

Rate: TypeAlias = Callable[..., float]
"""Of (step, epoch), or of (step, epoch, the steps of the run)."""


def wants_length(rate: Rate) -> bool:
    """Whether it is to be told the number of steps of the run: it takes a third argument, with no default."""
    if isinstance(rate, OnPlateau):
        return wants_length(rate.then)
    try:
        parameters = inspect.signature(rate).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in parameters) == 3


def cosine(lr: float, steps: int | None = None, least: float = 0.0) -> Rate:
    """From ``lr`` down to ``least`` in so many steps, where it stays: ``CosineAnnealingLR``.

    steps: None: all of the run.
    """
    _check("cosine", steps=1 if steps is None else steps, lr=lr, least=least)

    def rate(step: int, epoch: int, steps: int) -> float:
        return least + (lr - least) * _fallen(step / max(1, steps))

    return rate if steps is None else _in(steps, rate)


def step(lr: float, every: int, factor: float = 0.1, *, by: str = "epoch") -> Rate:
    """``lr``, multiplied by ``factor`` after every so many epochs, or steps: ``StepLR``."""
    _check("step", every=every, lr=lr, factor=factor)
    _require("lr.step", by in ("epoch", "step"), "by", by, "'epoch' or 'step'")

    def rate(step: int, epoch: int) -> float:
        return lr * factor ** ((epoch if by == "epoch" else step) // every)

    return rate


def warmup(steps: int, then: Rate | float) -> Rate:
    """Up to what ``then`` begins with in so many steps, in equal parts; from there on ``then``.

    then: a learning rate, or a function of (step, epoch), which is told of steps from there on; and of the
    run's steps, if it wants to know them, how many are left from there on.
    """
    _check("warmup", steps=steps)
    _require("lr.warmup", callable(then) or is_number(then, 0), "then", then, "a number >= 0, or a function")
    if isinstance(then, OnPlateau):
        raise ProgramError(
            "lr.warmup(then=lr.on_plateau(...)): put it the other way round, on_plateau outside."
        )
    later: Rate = then if callable(then) else cosine(then, 1, then)

    def rate(step: int, epoch: int, *left: int) -> float:
        if step < steps:
            return later(0, 0, *left) * (step + 1) / (steps + 1)
        return later(step - steps, epoch, *left)

    def to_the_end(step: int, epoch: int, length: int) -> float:
        return rate(step, epoch, max(1, length - steps))

    return to_the_end if wants_length(later) else rate


def one_cycle(
    lr: float, steps: int | None = None, *, rising: float = 0.3, first: float = 1 / 25, last: float = 4e-6
) -> Rate:
    """Up from ``first * lr`` to ``lr`` in a share of ``rising`` of the steps, and down to ``last * lr``.

    Along cosines: ``OneCycleLR``, of which these are the defaults. steps: None: all of the run.
    """
    _check("one_cycle", steps=1 if steps is None else steps, lr=lr, first=first, last=last)
    _require("lr.one_cycle", is_number(rising, 0, 1), "rising", rising, "a number in [0, 1]")

    def rate(step: int, epoch: int, steps: int) -> float:
        top = max(rising * steps - 1, 0.0)
        if step < top:
            return lr * (1 + (first - 1) * _fallen(step / top))
        return lr * (last + (1 - last) * _fallen((step - top) / max(steps - 1 - top, 1e-9)))

    return rate if steps is None else _in(steps, rate)


class OnPlateau:
    """A learning rate, and the rule by which evaluations lower it."""

    def __init__(self, then: Rate, plateau: Plateau) -> None:
        self.then, self.plateau = then, plateau

    def __call__(self, step: int, epoch: int, *length: int) -> float:
        """As long as no evaluation has lowered it."""
        return self.then(step, epoch, *length)


def on_plateau(
    then: Rate | float,
    metric: str,
    *,
    patience: int,
    mode: str,
    factor: float = 0.1,
    least: float = 0.0,
    least_gain: float = 0.0,
) -> OnPlateau:
    """``then``, multiplied by ``factor`` after each ``patience`` evaluations in a row without a gain.

    It is to be ``learning_rate`` itself. then: a learning rate, or a function of (step, epoch). metric, mode,
    least_gain: as in ``early_stopping``. least: it is not brought below that.
    """
    check_watch("lr.on_plateau", metric, mode, patience, least_gain)
    _check("on_plateau", factor=factor, least=least)
    _require("lr.on_plateau", factor < 1, "factor", factor, "a number in [0, 1)")
    fits = callable(then) or is_number(then, 0)
    _require("lr.on_plateau", fits, "then", then, "a number >= 0, or a function")
    rule = Plateau(
        metric=metric,
        mode=mode,
        patience=patience,
        least_gain=float(least_gain),
        factor=float(factor),
        least=float(least),
    )
    return OnPlateau(then if callable(then) else cosine(then, 1, then), rule)


def _in(steps: int, rate: Rate) -> Rate:
    """Of a run of so many steps, whatever its length is."""
    return lambda step, epoch: rate(step, epoch, steps)


def _fallen(share: float) -> float:
    """From 1 to 0 as ``share`` goes from 0 to 1, along a cosine.

    Without the last digits, in which C libraries differ.
    """
    return float(f"{(1 + math.cos(math.pi * min(share, 1.0))) / 2:.12f}")


def _check(kind: str, *, steps: int = 1, every: int = 1, **rates: float) -> None:
    for name, value in (("steps", steps), ("every", every)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        _require(f"lr.{kind}", whole, name, value, "a whole number > 0")
    for name, rate in rates.items():
        _require(f"lr.{kind}", is_number(rate, 0), name, rate, "a number >= 0")
