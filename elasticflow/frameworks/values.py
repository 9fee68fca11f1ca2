"""Weights into what a program's ``model()`` returned: the framework's own modules and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import framework_of
from elasticflow.step.layout import Array, Rule


def put_weights(values: Mapping[str, Any], forward: Callable[..., Any], arrays: Mapping[str, Array]) -> None:
    """Gives all tensors their values, by name. Tables stay empty: their rows are in ``arrays``.

    Raises ProgramError if a tensor has none: the model is another one.
    """
    put = _torch if framework_of(values, forward) == "torch" else _tensorflow
    put(values, arrays)


def _torch(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    import torch

    from elasticflow.frameworks.torch_model import find

    found, _ = find(values)
    with torch.no_grad():
        for entry, tensor in zip(found.entries, found.tensors, strict=True):
            tensor.copy_(torch.from_numpy(_array(entry.name, tuple(tensor.shape), arrays)))


def _tensorflow(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    from elasticflow.frameworks.tensorflow import _TensorFlowFound

    found = _TensorFlowFound(values)
    if found.unbuilt:
        raise ProgramError(
            f"{found.unbuilt[0]}: has no weights before it is first called; say its input's shape in "
            "model(), such as by keras.layers.Input."
        )
    for entry, variable in zip(found.entries, found.variables, strict=True):
        if entry.rule is not Rule.ROWS:
            variable.assign(_array(entry.name, tuple(variable.shape), arrays))


def _array(name: str, shape: tuple[int, ...], arrays: Mapping[str, Array]) -> Array:
    array = arrays.get(name)
    if array is None or array.shape != shape:
        there = "is not in the checkpoint" if array is None else f"is of shape {array.shape} there"
        raise ProgramError(f"{name}: of shape {shape} in the model, {there}: it is another model's.")
    return np.array(array)
