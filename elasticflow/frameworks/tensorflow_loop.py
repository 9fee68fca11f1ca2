"""What a loop of the program's own needs of TensorFlow: see ``elasticflow.frameworks.looping``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticflow.errors import LoopError
from elasticflow.frameworks.loop_plan import KEPT, ArrayShape
from elasticflow.frameworks.loop_tensors import KeptThing
from elasticflow.frameworks.looping import Looping
from elasticflow.frameworks.session import SlicePart
from elasticflow.step.layout import Array


def _bare(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _value_of(thing: Any) -> Array:
    """A copy."""
    return np.array(thing if isinstance(thing, np.ndarray) else _bare(thing).numpy())


class _KeptValues:
    """Variables and arrays by the names of their entries. names: of those that are the model's."""

    def __init__(self, things: Mapping[str, Any], names: frozenset[str]) -> None:
        self._things, self.names = things, names

    def arrays(self) -> dict[str, Array]:
        return {name: _value_of(thing) for name, thing in self._things.items()}

    def load(self, read: Callable[[str], Array], *, own: bool) -> None:
        for name, thing in self._things.items():
            if own or name in self.names:
                _put(thing, read(name))


def _put(thing: Any, array: Array) -> None:
    np.copyto(thing, array) if isinstance(thing, np.ndarray) else _bare(thing).assign(np.array(array))


class _KeptOptimizer:
    """One of Keras's. like: by the names of entries, the variables that it was built for in a step."""

    names: frozenset[str] = frozenset()

    def __init__(self, name: str, optimizer: Any, like: dict[str, Any]) -> None:
        self._name, self._optimizer, self._like = name, optimizer, like

    def arrays(self) -> dict[str, Array]:
        self._like.setdefault(self._name, list(getattr(self._optimizer, "_trainable_variables", [])))
        return {f"{self._name}.{n}": _value_of(each) for n, each in enumerate(self._optimizer.variables)}

    def load(self, read: Callable[[str], Array], *, own: bool) -> None:
        if own:
            if not self._optimizer.built:
                self._optimizer.build(self._like[self._name])
            for number, variable in enumerate(self._optimizer.variables):
                _put(variable, read(f"{self._name}.{number}"))


class TensorFlowTensors:
    """See ``LoopTensors``. variables: of the model that are trained, by the names of their entries."""

    def __init__(self, path: str, variables: Mapping[str, tf.Variable]) -> None:
        self._path, self._variables = path, dict(variables)
        self._like: dict[str, Any] = {}
        self._names = {id(variable): name for name, variable in variables.items()}
        self.compares = True
        """Whether ``changed`` compares values: that takes long."""
        self._before: dict[str, Array] = {}

    def begin(self) -> None:
        self._before = {name: _value_of(each) for name, each in self._variables.items() if self.compares}

    def changed(self) -> str:
        pairs = ((name, before, _value_of(self._variables[name])) for name, before in self._before.items())
        return next((name for name, before, now in pairs if before.tobytes() != now.tobytes()), "")

    def gradients(self, target: Any, gradient: Any) -> Iterator[tuple[str, tf.Tensor | None]]:
        if isinstance(target, (keras.layers.Layer, tf.Module)) and not isinstance(target, tf.Variable):
            target = list(target.trainable_variables)
        if isinstance(target, (list, tuple)):
            if not isinstance(gradient, (list, tuple)) or len(gradient) != len(target):
                found = len(gradient) if isinstance(gradient, (list, tuple)) else type(gradient).__name__
                raise LoopError(
                    f"{self._path}: step.push() of {len(target)} parameters, with gradients: {found}; give a "
                    "list, of one for each of trainable_variables."
                )
            for each, its in zip(reversed(target), reversed(gradient), strict=True):
                yield from self.gradients(each, its)
            return
        name = target if isinstance(target, str) else self._names.get(id(_bare(target)), "")
        variable = self._variables.get(name)
        if variable is None:
            what = f"{target!r}" if isinstance(target, str) else f"a {type(target).__name__}"
            shown = ", ".join(list(self._variables)[:8]) + (", ..." if len(self._variables) > 8 else "")
            raise LoopError(
                f"{self._path}: step.push() of {what}, which is no parameter that model() returned; there "
                f"are {shown}."
            )
        yield name, self._checked(name, variable, gradient)

    def _checked(self, name: str, variable: tf.Variable, gradient: Any) -> tf.Tensor | None:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            rows = tf.shape(variable)[0]
            gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
        if not tf.is_tensor(gradient) or gradient.shape != variable.shape:
            shape = tuple(gradient.shape) if tf.is_tensor(gradient) else type(gradient).__name__
            raise LoopError(
                f"{self._path}: step.push({name!r}, ...): the gradient is {shape}, the parameter of shape "
                f"{tuple(variable.shape)}."
            )
        return tf.cast(gradient, variable.dtype)

    def summand(self, name: str, value: Any) -> tuple[tf.Tensor, ArrayShape]:
        value = _bare(value)
        try:
            tensor = tf.identity(value) if tf.is_tensor(value) else tf.constant(np.asarray(value))
            dtype = np.dtype(tensor.dtype.as_numpy_dtype)
        except (TypeError, ValueError) as error:
            raise LoopError(
                f"{self._path}: {name!r} is a {type(value).__name__}; it must be a tensor or a number."
            ) from error
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer) or dtype.isbuiltin != 1:
            raise LoopError(f"{self._path}: {name!r} is {tensor.dtype.name}; it must be of real numbers.")
        return tensor, ArrayShape(tuple(tensor.shape), dtype.name)

    def times(self, value: tf.Tensor, factor: float) -> tf.Tensor:
        return value * tf.cast(factor, value.dtype)

    def nothing(self, value: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(value)

    def of_array(self, array: Array) -> tf.Tensor:
        return tf.constant(np.array(array))

    def kept(self, name: str, thing: Any) -> KeptThing:
        if isinstance(thing, keras.optimizers.Optimizer):
            return _KeptOptimizer(f"{KEPT}.{name}", thing, self._like)
        if isinstance(thing, (keras.Variable, tf.Variable)):
            if known := self._names.get(id(_bare(thing))):
                return _KeptValues({known: thing}, frozenset([known]))
            return _KeptValues({f"{KEPT}.{name}": thing}, frozenset())
        if isinstance(thing, (keras.layers.Layer, tf.Module)):
            own = [_bare(each) for each in thing.trainable_variables]
            if not own or any(id(each) not in self._names for each in own):
                raise LoopError(
                    f"{self._path}: session.keep({name}=...): a layer's variables must be those of one that "
                    "model() returned."
                )
            named = {self._names[id(each)]: each for each in own}
            return _KeptValues(named, frozenset(named))
        if isinstance(thing, np.ndarray):
            return _KeptValues({f"{KEPT}.{name}": thing}, frozenset())
        raise LoopError(
            f"{self._path}: session.keep({name}=...) of a {type(thing).__name__}; keep variables, NumPy's "
            "arrays, layers that model() returned, and Keras's optimizers."
        )


def traced(
    looping: Looping,
    tensors: TensorFlowTensors,
    batch: Mapping[str, Any],
    variables: Sequence[tf.Variable],
) -> None:
    """Finds out the loop's plan. variables: all of the model, which are as before afterwards."""
    before = [variable.numpy() for variable in variables]
    try:
        looping.plan = looping.trace(SlicePart(dict(batch), 1.0))
    finally:
        tensors.compares = False
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
