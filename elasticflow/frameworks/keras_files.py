"""Keras's own files: their weights, by the names that a program's model has for them; and such as compute."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticflow.errors import CheckpointError, ProgramError
from elasticflow.frameworks.tensorflow import named_variables, named_weights
from elasticflow.step.layout import Array

ONNX_OPSET = 18
"""The newest that tf2onnx writes."""


ADAM = {"_momentums": "exp_avg", "_velocities": "exp_avg_sq", "_velocity_hats": "max_exp_avg_sq"}
STATES = {"Adam": ADAM, "AdamW": ADAM, "SGD": {"momentums": "momentum_buffer"}}
"""What Keras's optimizers call what ours keep of each parameter."""


def layer_weights(values: Mapping[str, Any], path: str) -> dict[str, Array]:
    """What a ``.keras`` or ``.weights.h5`` file holds of the one model among ``values``.

    Raises CheckpointError if there is no such model, or several, or the file is not of it.
    """
    key, model = _only_model(values, path)
    with _naming(path):
        if path.endswith(".weights.h5"):
            model.load_weights(path)
        else:
            model = keras.models.load_model(path, compile=False, safe_mode=True)
    return named_weights({key: model})


def weights_and_state(values: Mapping[str, Any], path: str, form: str) -> tuple[dict[str, Array], int]:
    """As ``layer_weights``, with ``name#slot`` for what the optimizer has kept; and how many updates it made.

    path: a ``.keras`` file of a compiled model. form: that of the program's optimizer, see ``ef.SGD``. Raises
    CheckpointError.
    """
    key, _ = _only_model(values, path)
    if not path.endswith(".keras"):  # of .h5 Keras itself restores no optimizer's state
        raise CheckpointError(
            f"{path}: an optimizer's state is taken of Keras's .keras files alone. Save the whole model, "
            "model.save('model.keras'), or take the weights alone."
        )
    with _naming(path):
        model = keras.models.load_model(path, safe_mode=True)
    optimizer = getattr(model, "optimizer", None)
    kind = type(optimizer).__name__
    if optimizer is None or not optimizer.built:
        raise CheckpointError(f"{path}: holds no optimizer's state: its model was not compiled and trained.")
    if kind not in STATES:
        raise CheckpointError(
            f"{path}: holds the state of Keras's {kind}; that of {', '.join(STATES)} can be taken. Take the "
            "weights alone."
        )
    found = named_weights({key: model})
    names = {id(variable): name for name, variable in named_variables({key: model}).items()}
    for attribute, slot in STATES[kind].items():
        for variable, kept in zip(
            optimizer._trainable_variables, getattr(optimizer, attribute, ()), strict=False
        ):
            found[f"{names[id(variable.value)]}#{slot}"] = _as_ours(path, optimizer, kept.numpy(), slot, form)
    return found, int(optimizer.iterations.numpy())


def _as_ours(path: str, optimizer: Any, kept: Array, slot: str, form: str) -> Array:
    """Keras keeps momentum with the learning rate in it, and its sign turned; torch's form does not."""
    if slot != "momentum_buffer":
        return kept
    if form == "keras":
        return np.negative(kept)
    if not isinstance(optimizer.get_config()["learning_rate"], (int, float)):
        raise CheckpointError(
            f"{path}: its momentum has the learning rates of a schedule in it, which ef.SGD keeps apart. "
            "Name keras.optimizers.SGD in model(), or take the weights alone."
        )
    rate = np.asarray(optimizer.learning_rate.numpy(), kept.dtype)
    return np.asarray(np.negative(kept) / rate)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: Keras cannot load it: {str(error).strip().splitlines()[0]}"
        ) from error


def _only_model(values: Mapping[str, Any], path: str) -> tuple[str, Any]:
    models = {key: value for key, value in values.items() if isinstance(value, keras.layers.Layer)}
    if len(models) != 1:
        raise CheckpointError(
            f"{path}: a file of Keras's is of one model, and model() returned {len(models)} layers or models "
            f"({', '.join(models) or 'none'}). Export it to .npz, and map its names by --init-map."
        )
    return next(iter(models.items()))


def write(
    path: Path,
    ending: str,
    predict: Callable[..., Any] | None,
    params: Mapping[str, Any],
    names: Sequence[str],
    columns: Sequence[Array],
) -> None:
    """As ``torch_files.write``: a folder for TensorFlow to load, or the one Keras model. Raises
    ProgramError."""
    layers = {key: value for key, value in params.items() if isinstance(value, keras.layers.Layer)}
    if ending == ".keras":
        if len(layers) != 1 or not isinstance(next(iter(layers.values())), keras.Model):
            raise ProgramError(
                f"a .keras file is of one Keras model, and model() returned {', '.join(layers) or 'none'}; "
                "export to .savedmodel, or .npz."
            )
        temporary = path.with_suffix(".keras")  # Keras looks at the ending
        next(iter(layers.values())).save(temporary)
        temporary.rename(path)
        return
    module = tf.Module()
    module.parts = {key: value for key, value in params.items() if key != "optimizer"}
    specs = [
        tf.TensorSpec([None, *column.shape[1:]], column.dtype, name)
        for name, column in zip(names, columns, strict=True)
    ]

    def serve(*given: tf.Tensor) -> Any:
        if predict is not None:
            return predict(**dict(zip(names, given, strict=True)), params=params)
        return next(iter(layers.values()))(*given, training=False)

    if ending == ".onnx":
        _write_onnx(path, tf.function(serve), specs)
        return
    module.predict = tf.function(serve, input_signature=specs)
    tf.saved_model.save(module, str(path), signatures=module.predict)


def _write_onnx(path: Path, serve: Any, specs: Sequence[Any]) -> None:
    try:
        import tf2onnx
    except ImportError as error:
        raise ProgramError(
            f"ONNX needs the package tf2onnx, and {error.name} is not there: "
            "pip install 'elasticflow-trainer[onnx]'."
        ) from error
    tf2onnx.convert.from_function(serve, input_signature=specs, opset=ONNX_OPSET, output_path=str(path))
