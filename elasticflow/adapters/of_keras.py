"""``keras.Model.fit`` of a plain script, as a program: see docs/keras.md."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from elasticflow.adapters.capture import wrapped
from elasticflow.adapters.nests import flat, rebuilt
from elasticflow.data import Arrays
from elasticflow.errors import ProgramError
from elasticflow.training import lr
from elasticflow.training.standing import early_stopping

USUAL = {
    "initial_epoch": (0, "a run goes on where it ended by --resume"),
    "steps_per_epoch": (None, "an epoch has all records; --max-steps ends a run sooner"),
    "validation_steps": (None, "an evaluation has all records of validation_data"),
    "validation_freq": (1, "say --evaluate-every STEPS"),
    "shuffle": (True, "records of an epoch are always shuffled"),
}
"""Arguments of fit() that can be nothing else, and what to do instead."""
NOT_NEEDED = (
    "BackupAndRestore", "CSVLogger", "History", "ModelCheckpoint", "ProgbarLogger", "TensorBoard",
    "TerminateOnNaN",
)  # fmt: skip
"""Callbacks in whose place a run has something of its own: checkpoints, status and report, ``on_nan``."""
OWN = ("train_step", "test_step", "compute_metrics")
"""Methods that a model must leave as they are."""

_compiled: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""What each model's compile() was given."""


def check_library(keras: Any) -> None:
    """Raises ProgramError where Keras has another backend."""
    if keras.backend.backend() != "tensorflow":
        raise ProgramError(
            f"Keras runs on {keras.backend.backend()} here; fit() is trained with KERAS_BACKEND=tensorflow."
        )


@contextmanager
def watched(keras: Any) -> Iterator[None]:
    """Notes what models are compiled with."""
    with wrapped(keras.Model, "compile", lambda model, given: _compiled.__setitem__(model, given)):
        yield


def program_of(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a program would have defined. Raises ProgramError for what cannot be trained here."""
    return _Fit(model, given).program()


class _Fit:
    """A call of fit() of a model."""

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        self._keras = sys.modules["keras"]
        self._model, self._given, self._compiled = model, given, _compiled.get(model)
        self._check()
        train, test = self._records()
        self._columns, self._nest = flat("of", train)
        self._data: dict[str, Any] = {"train": Arrays(**self._arrays("fit()", self._columns))}
        if test is not None:
            columns, nest = flat("of", test)
            if columns.keys() != self._columns.keys():
                raise ProgramError(
                    f"fit(): validation_data has the parts {', '.join(columns)}, x and y have "
                    f"{', '.join(self._columns)}; both must be nested alike."
                )
            self._data["test"] = Arrays(**self._arrays("validation_data", columns))

    def program(self) -> dict[str, Any]:
        optimizer, rate = self._optimizer()
        found: dict[str, Any] = {"forward": self._forward(), "data": lambda: dict(self._data)}
        found["model"] = lambda: {"model": self._model, "optimizer": optimizer}
        if "test" in self._data and (metrics := self._metrics()):
            found["metrics"] = metrics
        if rate:
            found["learning_rate"] = rate
        for callback in self._callbacks():
            found |= self._of_callback(callback, found, float(optimizer.get_config()["learning_rate"]))
        return found

    # --- what cannot be --------------------------------------------------------------------------

    def _check(self) -> None:
        if self._compiled is None:
            raise ProgramError("fit(): the model was not compiled in this script; call its compile() before.")
        for name, (usual, advice) in USUAL.items():
            value = self._given.get(name, usual)
            if not (value is usual or value == usual or (name == "shuffle" and value == "batch")):
                raise ProgramError(
                    f"fit(): {name}={value!r} is not {usual!r}, which is all that is known here: {advice}."
                )
        for name in OWN:
            if getattr(type(self._model), name) is not getattr(self._keras.Model, name):
                raise ProgramError(
                    f"fit(): {type(self._model).__name__} has a {name}() of its own, which is not called "
                    "here: "
                    "define loop(session) instead, see docs/session.md."
                )
        if self._compiled.get("weighted_metrics"):
            raise ProgramError(
                "compile(): weighted_metrics are not known here; give them as metrics, unweighted."
            )
        for loss in flat("loss", self._compiled.get("loss"))[0].values():
            reduction = getattr(loss, "reduction", "sum_over_batch_size")
            if reduction not in ("sum_over_batch_size", "mean"):
                raise ProgramError(
                    f"compile(): the loss {type(loss).__name__} has reduction={reduction!r}; a step's cost "
                    "is the "
                    "mean over its records, so only 'sum_over_batch_size' is known here."
                )

    # --- records ---------------------------------------------------------------------------------

    def _records(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Those of training, and those to test with, each as {"x": ..., "y": ..., "weight": ...}."""
        given = self._given
        train = self._unpacked("x", given.get("x"), given.get("y"), given.get("sample_weight"))
        test = None
        if given.get("validation_data") is not None:
            found = given["validation_data"]
            parts = found if isinstance(found, (tuple, list)) else (found,)
            test = self._unpacked("validation_data", *parts)
        elif share := given.get("validation_split"):
            count = _length(train)
            kept = math.floor(count * (1.0 - share))
            if not 0 < kept < count:
                raise ProgramError(
                    f"fit(): validation_split={share} of {count} records leaves none for one of both."
                )
            train, test = _cut(train, 0, kept), _cut(train, kept, count)
        if given.get("class_weight"):
            train["weight"] = self._class_weights(train)
        if test is not None and (train["weight"] is None) != (test["weight"] is None):
            for part in (train, test):
                if part["weight"] is None:
                    part["weight"] = np.ones(_length(part), np.float32)
        return train, test

    def _unpacked(self, name: str, x: Any, y: Any = None, weight: Any = None) -> dict[str, Any]:
        """In memory, whatever they were given as."""
        tensorflow = sys.modules["tensorflow"]
        if isinstance(x, tensorflow.data.Dataset):
            x, y, weight = _read(name, x)
        if isinstance(x, self._keras.utils.PyDataset) or hasattr(x, "__next__"):
            raise ProgramError(
                f"fit(): {name} is a {type(x).__name__}, whose batches only come one after the other: give "
                "arrays or a finite tf.data.Dataset; or define model(), forward() and data(), which may "
                "return a "
                "source that makes records by number (docs/data.md)."
            )
        return {"x": x, "y": y, "weight": weight}

    def _class_weights(self, train: Mapping[str, Any]) -> Any:
        weights, labels = self._given["class_weight"], np.asarray(train["y"])
        if train["weight"] is not None:
            raise ProgramError(
                "fit(): class_weight and sample_weight are not taken together, here as in Keras."
            )
        if isinstance(train["y"], (Mapping, tuple)):
            raise ProgramError("fit(): class_weight is for a model with one output, here as in Keras.")
        if labels.ndim > 1:
            labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
        if labels.ndim > 1:
            raise ProgramError(
                f"fit(): class_weight is for one label a record; y has the shape {np.shape(train['y'])}."
            )
        return np.array([weights.get(int(label), 1.0) for label in labels], np.float32)

    def _arrays(self, where: str, columns: Mapping[str, Any]) -> dict[str, Any]:
        """As Keras takes them: what is floating becomes its floating type."""
        found = {}
        for name, value in columns.items():
            array = np.asarray(value)
            if array.dtype.kind not in "biuf":
                raise ProgramError(
                    f"{where}: {name.removeprefix('of_')} is of {array.dtype}; numbers are known here: "
                    "make them "
                    "of texts beforehand, by a StringLookup or TextVectorization called outside of the model."
                )
            found[name] = array.astype(self._keras.config.floatx()) if array.dtype.kind == "f" else array
        return found

    # --- the model -------------------------------------------------------------------------------

    def _forward(self) -> Callable[..., Any]:
        nest = self._nest

        def forward(*, params: Any, **columns: Any) -> Any:
            record = rebuilt(nest, columns)
            model = params["model"]
            told = model(record["x"])
            return model.compute_loss(record["x"], record["y"], told, sample_weight=record["weight"])

        return forward

    def _metrics(self) -> Callable[..., Any] | None:
        """Of those that the model was compiled with; None: there are none."""
        assert self._compiled is not None
        chosen = list(_by_output(self._compiled.get("metrics"), self._outputs()))
        if not chosen:
            return None
        made = [(name, place, self._metric(each)) for name, place, each in chosen]
        names = [_metric_name(name, each, self._outputs()) for name, _, each in chosen]
        if len(set(names)) < len(names):
            raise ProgramError(
                f"compile(): two metrics are named alike, of {', '.join(names)}; give each a name."
            )
        nest = self._nest

        def metrics(*, params: Any, **columns: Any) -> dict[str, Any]:
            record = rebuilt(nest, columns)
            told = params["model"](record["x"])
            parts = [(_part(record["y"], place, name), _part(told, place, name)) for name, place, _ in made]
            values = [metric(y, y_told) for (_, _, metric), (y, y_told) in zip(made, parts, strict=True)]
            return dict(zip(names, values, strict=True))

        return metrics

    def _outputs(self) -> list[str]:
        """Names of its outputs; only one, if it tells none."""
        names = getattr(self._model, "output_names", None) or []
        return list(names) if len(names) > 1 else [""]

    def _metric(self, each: Any) -> Callable[[Any, Any], Any]:
        """A function of targets and predictions: a mean over records, or an object that has seen them."""
        metrics = self._keras.metrics
        if each in ("accuracy", "acc"):
            return self._accuracy
        found = metrics.get(each)
        if (
            isinstance(found, metrics.MeanMetricWrapper)
            and type(found).update_state is metrics.MeanMetricWrapper.update_state
        ):
            inner, words = found._fn, found._fn_kwargs
            return lambda y, told: self._mean(inner(y, told, **words), told)
        if isinstance(found, metrics.Metric):
            return lambda y, told: (found.update_state(y, told), found)[1]
        return lambda y, told: self._mean(found(y, told), told)

    def _accuracy(self, y: Any, told: Any) -> Any:
        """The one that Keras chooses by the shapes."""
        metrics = self._keras.metrics
        if told.shape[-1] == 1:
            function = metrics.binary_accuracy
        elif len(y.shape) < len(told.shape) or y.shape[-1] == 1:
            function = metrics.sparse_categorical_accuracy
        else:
            function = metrics.categorical_accuracy
        return self._mean(function(y, told), told)

    def _mean(self, values: Any, told: Any) -> Any:
        if getattr(told, "_keras_mask", None) is not None:
            raise ProgramError(
                "compile(): metrics of a model whose output has a mask are no means over records; leave "
                "them out."
            )
        return self._keras.ops.mean(values)

    # --- how it is trained -----------------------------------------------------------------------

    def _optimizer(self) -> tuple[Any, Callable[..., float] | None]:
        """The optimizer, and its schedule, if it has one."""
        optimizer = self._model.optimizer
        config = optimizer.get_config()
        schedule = config.get("learning_rate")
        if not isinstance(schedule, dict):
            return optimizer, None
        if callable(getattr(optimizer, "_learning_rate", None)):
            schedule = optimizer._learning_rate
        else:
            schedule = self._keras.optimizers.schedules.deserialize(schedule)

        def rate(step: int, epoch: int) -> float:
            return float(schedule(step))

        plain = type(optimizer).from_config({**config, "learning_rate": rate(0, 0)})
        for name in ("_exclude_from_weight_decay_names", "_exclude_from_weight_decay_ids"):
            if hasattr(optimizer, name):
                setattr(plain, name, getattr(optimizer, name))
        return plain, rate

    def _callbacks(self) -> list[Any]:
        """The rates' own before those that lower them."""
        found = self._given.get("callbacks") or []
        listed = list(found) if isinstance(found, (tuple, list)) else [found]
        return sorted(listed, key=lambda each: type(each).__name__ == "ReduceLROnPlateau")

    def _of_callback(self, callback: Any, found: Mapping[str, Any], first: float) -> dict[str, Any]:
        """What a program has instead of a callback. found: what it has already. first: the learning rate."""
        callbacks, name = self._keras.callbacks, type(callback).__name__
        if type(callback) is callbacks.EarlyStopping:
            if callback.baseline is not None or callback.start_from_epoch:
                _refuse(callback, "baseline and start_from_epoch are not known here")
            metric, mode = self._monitored(callback)
            patience, gain = max(1, callback.patience), float(callback.min_delta)
            return {"early_stopping": early_stopping(metric, patience, mode, least_gain=gain)}
        if type(callback) is callbacks.ReduceLROnPlateau:
            if callback.cooldown:
                _refuse(callback, "cooldown is not known here")
            metric, mode = self._monitored(callback)
            plateau = lr.on_plateau(
                found.get("learning_rate", first),
                metric,
                patience=max(1, callback.patience),
                mode=mode,
                factor=float(callback.factor),
                least=float(callback.min_lr),
                least_gain=float(callback.min_delta),
            )
            return {"learning_rate": plateau}
        if type(callback) is callbacks.LearningRateScheduler:
            if "learning_rate" in found:
                _refuse(callback, "the optimizer has a schedule already; leave out one of both")
            return {"learning_rate": _scheduled(callback.schedule, first)}
        if type(callback) is getattr(callbacks, name, None) and name in NOT_NEEDED:
            return {}
        _refuse(
            callback,
            "known are EarlyStopping, ReduceLROnPlateau and LearningRateScheduler; "
            f"{', '.join(NOT_NEEDED)} are left out. What a callback of your own decides on_epoch(info) "
            "can, in a "
            "program (docs/training.md)",
        )
        return {}

    def _monitored(self, callback: Any) -> tuple[str, str]:
        """The metric's name here, and what is better."""
        name, mode = callback.monitor, callback.mode
        if "test" not in self._data or not name.startswith("val_"):
            _refuse(
                callback,
                f"monitor={name!r}; evaluations decide here, of validation_data: name val_loss, or a "
                "metric of "
                "compile() as val_NAME, and give fit() validation_data",
            )
        name = name.removeprefix("val_")
        if mode not in ("min", "max"):
            if name == "loss":
                mode = "min"
            elif any(name.endswith(word) for word in ("acc", "accuracy", "auc", "precision", "recall")):
                mode = "max"
            elif name.endswith(("error", "mae", "mse", "loss", "crossentropy")):
                mode = "min"
            else:
                _refuse(
                    callback, f"of {name!r} it is not known whether more is better; say mode='min' or 'max'"
                )
        return "cost" if name == "loss" else name, mode


def _refuse(callback: Any, reason: str) -> None:
    raise ProgramError(f"fit(): the callback {type(callback).__name__}: {reason}.")


def _scheduled(schedule: Callable[..., float], first: float) -> Callable[[int, int], float]:
    """A learning rate of epochs, each of which may follow from the one before."""
    rates: list[float] = []

    def rate(step: int, epoch: int) -> float:
        while len(rates) <= epoch:
            try:
                rates.append(float(schedule(len(rates), rates[-1] if rates else first)))
            except TypeError:  # one of the epoch alone, as Keras takes too
                rates.append(float(schedule(len(rates))))
        return rates[epoch]

    return rate


def _read(name: str, dataset: Any) -> tuple[Any, Any, Any]:
    """All records of a dataset of batches, once."""
    if int(dataset.cardinality()) == -1:
        raise ProgramError(f"fit(): {name} is a tf.data.Dataset without an end; leave out its repeat().")
    batches = [
        flat("of", batch if isinstance(batch, tuple) else (batch,)) for batch in dataset.as_numpy_iterator()
    ]
    if not batches:
        raise ProgramError(f"fit(): {name} is an empty tf.data.Dataset.")
    columns = {
        column: np.concatenate([np.asarray(each[column]) for each, _ in batches]) for column in batches[0][0]
    }
    parts = rebuilt(batches[0][1], columns)
    if not 1 <= len(parts) <= 3:
        raise ProgramError(f"fit(): batches of {name} have {len(parts)} parts; x, y and weights are known.")
    return (*parts, *[None] * (3 - len(parts)))


def _length(records: Mapping[str, Any]) -> int:
    return len(next(iter(flat("of", records)[0].values())))


def _cut(records: Mapping[str, Any], first: int, last: int) -> dict[str, Any]:
    columns, nest = flat("of", records)
    cut: dict[str, Any] = rebuilt(
        nest, {name: np.asarray(each)[first:last] for name, each in columns.items()}
    )
    return cut


def _by_output(metrics: Any, outputs: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
    """Each metric with the name and place of the output that it is of."""
    if metrics is None:
        return
    if isinstance(metrics, Mapping):
        parts = (
            {name: metrics.get(name) for name in outputs} if outputs != [""] else dict([*metrics.items()][:1])
        )
    elif len(outputs) == 1:
        parts = {"": metrics}
    else:
        parts = dict(zip(outputs, metrics, strict=True))
    for place, (name, of_one) in enumerate(parts.items()):
        for each in of_one if isinstance(of_one, (tuple, list)) else [] if of_one is None else [of_one]:
            yield (name if len(outputs) > 1 else ""), place, each


def _metric_name(output: str, each: Any, outputs: Sequence[str]) -> str:
    name = (
        each if isinstance(each, str) else getattr(each, "name", None) or getattr(each, "__name__", "metric")
    )
    return f"{output}_{name}" if len(outputs) > 1 else str(name)


def _part(nest: Any, place: int, name: str) -> Any:
    """Of several outputs, or their targets, the one that is meant."""
    if isinstance(nest, Mapping):
        return nest[name] if name else next(iter(nest.values()))
    return nest[place] if isinstance(nest, (tuple, list)) else nest
