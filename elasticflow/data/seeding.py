"""Random states, set before each record that Python makes: that must cost little beside the record."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

import numpy as np

from elasticflow.hashing import mix
from elasticflow.process import gpus

SINGLE = "__wrapped__"
"""Begins the names of functions that TensorFlow makes of single operations, outside of any other."""


def seed_all(seed: int, number: int) -> None:
    """Sets the random states of Python, NumPy and the frameworks that are loaded, for one record."""
    value = mix(seed, number)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        _seed_torch(torch, value)
    if sys.modules.get("tensorflow"):
        _late_seed().set(value)


def _seed_torch(torch: Any, value: int) -> None:
    """As ``torch.manual_seed``, which has the stack formatted for each kind of device that is not in use."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized() or _may_use_gpus():
        torch.cuda.manual_seed_all(value)  # or once they are in use


@functools.cache
def _may_use_gpus() -> bool:
    return bool(gpus.nodes())


@functools.cache
def _late_seed() -> LateSeed:
    return LateSeed()


class LateSeed:
    """Does ``tf.random.set_seed`` only before TensorFlow draws, or traces a function.

    That throws away what TensorFlow has made of all operations, the compiled step among them, since there the
    states of those lie that draw; to make that again takes milliseconds, for each record. Where a function
    that draws was traced, whose calls nobody sees, it is done at once.
    """

    def __init__(self) -> None:
        from tensorflow.python.eager import context

        self._module: Any = context
        self._set, self._get = context.set_global_seed, context.global_seed
        self._waiting: int | None = None
        self._known: set[Any] = set()
        self._looks, self._draws = True, False
        self._module.set_global_seed, self._module.global_seed = self._set_now, self._asked

    def set(self, value: int) -> None:
        """Of the record that comes now."""
        if self._functions_draw():
            self._set_now(value)
        else:
            self._waiting = value

    def _set_now(self, value: int) -> None:
        self._waiting = None
        self._set(value)

    def _asked(self) -> Any:
        self._looks = True  # a function may be traced, which is known when it is done
        if self._waiting is not None:
            self._set_now(self._waiting)
        return self._get()

    def _functions_draw(self) -> bool:
        context = self._module.context()
        if self._looks and not self._draws and context._context_handle is not None:  # else it would begin now
            names = set(context.list_function_names())
            new = [each for each in names - self._known if not each.startswith(SINGLE)]
            nodes = (node for name in new for node in context.get_function_def(name).node_def)
            self._draws = any("seed2" in node.attr for node in nodes)
            self._known, self._looks = names, False
        return self._draws
