"""Metrics that are objects of torchmetrics or Keras, taken as they are.

A slice calls ``metrics()``, which updates the object; what its states are then is what the slice sends, each
reduced by the rule that the library has for it, and the object is set back. Where all states are together the
object is made once more, from its settings alone, and computes its value from them: nothing is ever
unpickled, and classes are the library's own. That this gives what the object itself gives is tried before a
run begins.

Sums of states are float64. Of states that are no sums each slice, or each record, has a place of its own, so
that adding them up loses nothing.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.errors import ProgramError
from elasticflow.process.decoding import from_json

Sums = npt.NDArray[np.float64]
Values = npt.NDArray[Any]

PLACES = 1 << 10
"""Slices that can have a place of their own."""
MOST_VALUES = 256
"""That one object may give: of a confusion matrix, say."""
RULES = ("sum", "mean", "max", "min", "cat")
HOMES = {"torchmetrics": "torchmetrics.", "keras": "keras.src.metrics."}
"""Where the classes of a library lie."""


class MetricState(msgspec.Struct, frozen=True):
    """One state of an object. shape: of ``cat``, that of one record's."""

    name: str
    rule: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    def size(self, num_test: int) -> int:
        """Of its sums: beside what lies in a place, whether there is anything."""
        if self.rule in ("max", "min", "cat"):
            return (num_test if self.rule == "cat" else PLACES) * (self.width + 1)
        return self.width + (self.rule == "mean")


class ObjectMetric(msgspec.Struct, frozen=True):
    """library: see ``HOMES``. made: JSON of how it is made. shape: of its value."""

    library: str
    made: str
    states: tuple[MetricState, ...]
    shape: tuple[int, ...] = ()

    def names(self, name: str) -> list[str]:
        """Of its values, such as ``confusion[0,1]``."""
        places = itertools.product(*map(range, self.shape))
        return [f"{name}[{','.join(map(str, place))}]" if place else name for place in places]


def is_object(value: object) -> bool:
    """Whether it has a state of its own, as metrics of torchmetrics and Keras have."""
    return hasattr(value, "update_state") or (hasattr(value, "update") and hasattr(value, "compute"))


def library_of(value: object) -> str:
    """The library whose metric it is, by its base class; "" if it is of none."""
    for library in HOMES:
        module = sys.modules.get(library)
        base = getattr(
            module if library == "torchmetrics" else getattr(module, "metrics", None), "Metric", None
        )
        if base is not None and isinstance(value, base):
            return library
    return ""


def set_back(objects: Iterable[Any]) -> None:
    """As if they had seen no record."""
    for each in objects:
        each.reset() if library_of(each) == "torchmetrics" else each.reset_state()


def states_of(value: Any) -> tuple[Any, ...]:
    """Its states, as the framework has them, in their order."""
    if library_of(value) == "keras":
        return tuple(_read(variable) for variable in value.variables)
    torch = sys.modules["torch"]
    found = (getattr(value, name) for name in value._defaults)
    return tuple(
        (torch.cat([torch.atleast_1d(each) for each in state]) if state else torch.empty(0))
        if isinstance(state, list)
        else state.detach().clone()
        for state in found
    )


def _read(variable: Any) -> Any:
    inner = getattr(variable, "value", variable)
    return inner.read_value() if hasattr(inner, "read_value") else inner


def taken(name: str, value: Any, states: Sequence[Values], num_records: int) -> ObjectMetric:
    """What there is to know of an object that has just seen so many records. states: see ``states_of``.

    Raises ProgramError, with the reason and the way, if it cannot be taken.
    """
    library = library_of(value)
    if not (library and f"{type(value).__module__}.".startswith(HOMES[library])):
        _refuse(
            name, value, "its class is none of torchmetrics' or Keras's own, the only ones that are known"
        )
    try:
        made = _settings_of_torch(value) if library == "torchmetrics" else _settings_of_keras(value)
        rules = _rules_of_torch(value) if library == "torchmetrics" else _rules_of_keras(value)
        told = tuple(
            _state(label, rule, state, num_records)
            for (label, rule), state in zip(rules, states, strict=True)
        )
        found = ObjectMetric(library, made, told)
        own = _value(value)
        again = _value(_filled(found, states))
    except _Unfit as error:
        _refuse(name, value, str(error))
    except Exception as error:  # noqa: BLE001  (whatever the library raises)
        _refuse(name, value, f"made again from its settings it raised {type(error).__name__}: {error}")
    if own.shape != again.shape or not np.array_equal(own, again, equal_nan=True):
        _refuse(name, value, "made again from its settings it gives another value")
    if own.size > MOST_VALUES or own.size == 0:
        _refuse(name, value, f"its value is {own.size:,} numbers; there can be from 1 to {MOST_VALUES}")
    return msgspec.structs.replace(found, shape=own.shape)


def _refuse(name: str, value: object, reason: str) -> None:
    raise ProgramError(
        f"metrics() returned for {name!r} a {type(value).__name__}, which cannot be taken: {reason}. Return "
        "what is made of sums over all, such as ef.metrics.auc(scores, y), or one number, the mean over the "
        "records."
    )


class _Unfit(Exception):
    """Why an object is not taken."""


def too_many(metric: ObjectMetric, num_slices: int) -> bool:
    """Whether not each slice would have a place of its own."""
    return num_slices > PLACES and any(state.rule in ("max", "min") for state in metric.states)


# --- what a slice sends ----------------------------------------------------------------------------


def add_states(
    metric: ObjectMetric, states: Sequence[Values], first: int, last: int, place: int, mine: Sums
) -> None:
    """Adds what test records ``first..last``, which are of slice ``place``, have made of them."""
    start, num_test = 0, _num_test(metric, len(mine))
    for state, array in zip(metric.states, states, strict=True):
        size = state.size(num_test)
        _ADDED[state.rule](state, np.asarray(array), mine[start : start + size], first, last, place)
        start += size


def size_of_states(metric: ObjectMetric, num_test: int) -> int:
    """How many sums there are of it."""
    return sum(state.size(num_test) for state in metric.states)


class ComputeError(Exception):
    """What a library raised, in words."""


def computed(metric: ObjectMetric, mine: Sums) -> list[float]:
    """Its value, flat, from the sums over all. Raises ComputeError."""
    try:
        return [float(value) for value in reduced(metric, mine).reshape(-1)]
    except Exception as error:  # whatever the library raises
        raise ComputeError(f"{type(error).__name__}: {error}") from error


def reduced(metric: ObjectMetric, mine: Sums) -> npt.NDArray[np.float64]:
    """Its value, of ``shape``, from the sums over all."""
    start, num_test = 0, _num_test(metric, len(mine))
    states = []
    for state in metric.states:
        size = state.size(num_test)
        states.append(_reduced_state(state, mine[start : start + size]))
        start += size
    return _value(_filled(metric, states))


def _num_test(metric: ObjectMetric, size: int) -> int:
    of_records = sum(state.width + 1 for state in metric.states if state.rule == "cat")
    rest = sum(state.size(0) for state in metric.states)
    return (size - rest) // of_records if of_records else 0


def _add_sum(state: MetricState, array: Values, mine: Sums, *_: int) -> None:
    mine[: state.width] += array.reshape(-1).astype(np.float64)
    mine[state.width :] += 1  # of means


def _add_greatest(state: MetricState, array: Values, mine: Sums, first: int, last: int, place: int) -> None:
    here = mine.reshape(PLACES, -1)[place]
    values = array.reshape(-1).astype(np.float64)
    better = np.maximum if state.rule == "max" else np.minimum
    here[:-1] = better(here[:-1], values) if here[-1] else values
    here[-1] = 1


def _add_records(state: MetricState, array: Values, mine: Sums, first: int, last: int, place: int) -> None:
    if array.size != (last - first) * state.width:
        raise ProgramError(
            f"metrics(): state {state.name!r} has kept {array.size:,} numbers of {last - first:,} records, "
            f"where it has kept {state.width} of each before. Use ef.metrics, which count records."
        )
    here = mine.reshape(-1, state.width + 1)[first:last]
    here[:, :-1] = array.reshape(last - first, -1)
    here[:, -1] = 1


_ADDED: dict[str, Callable[[MetricState, Values, Sums, int, int, int], None]] = {
    "sum": _add_sum,
    "mean": _add_sum,
    "max": _add_greatest,
    "min": _add_greatest,
    "cat": _add_records,
}


def _reduced_state(state: MetricState, mine: Sums) -> Values:
    dtype = np.dtype(state.dtype)
    if state.rule in ("sum", "mean"):
        total = mine[: state.width] / (mine[-1] if state.rule == "mean" else 1)
        return np.asarray(total.reshape(state.shape).astype(dtype))
    rows = mine.reshape(-1, state.width + 1)
    there = rows[rows[:, -1] > 0, :-1]
    if state.rule == "cat":
        return np.asarray(there.reshape(-1, *state.shape[1:]).astype(dtype))
    greatest = there.max(0) if state.rule == "max" else there.min(0)
    return np.asarray(greatest.reshape(state.shape).astype(dtype))


def _state(name: str, rule: str, array: Values, num_records: int) -> MetricState:
    shape = tuple(array.shape)
    if array.dtype.kind not in "biuf":
        raise _Unfit(f"its state {name!r} is of {array.dtype}")
    if rule == "cat":
        if not shape or not num_records or shape[0] % num_records or not array.size:
            raise _Unfit(
                f"its state {name!r} keeps {shape[0]} rows of {num_records} records, not some of each"
            )
        shape = (shape[0] // num_records, *shape[1:])
    return MetricState(name, rule, shape, array.dtype.name)


# --- made again ------------------------------------------------------------------------------------


def prepare(metrics: Iterable[ObjectMetric]) -> None:
    """Imports what computes their values. Raises ProgramError if it is not there."""
    for metric in metrics:
        try:
            _made(metric)
        except ImportError as error:
            raise ProgramError(
                f"metrics() has a metric of {metric.library}, which the first server computes, where it "
                f"cannot be imported: {error}. Install {metric.library} wherever servers run, or use "
                "ef.metrics."
            ) from error


@lru_cache(maxsize=64)
def _made(metric: ObjectMetric) -> Any:
    settings = from_json(metric.made, Any)
    return _of_torch(settings) if metric.library == "torchmetrics" else _of_keras(settings)


def _filled(metric: ObjectMetric, states: Sequence[Values]) -> Any:
    """The object, with these states."""
    made = _made(metric)
    if metric.library == "keras":
        if len(made.variables) != len(states):
            raise _Unfit("its variables follow from its first batch")
        for variable, state in zip(made.variables, states, strict=True):
            variable.assign(state)
        return made
    torch = importlib.import_module("torch")
    for told, state in zip(metric.states, states, strict=True):
        tensor = torch.from_numpy(np.array(state))
        setattr(made, told.name, [tensor] if told.rule == "cat" and made._in_lists[told.name] else tensor)
    made._computed, made._update_count = None, 1
    return made


def _value(made: Any) -> npt.NDArray[np.float64]:
    """What it computes. Raises _Unfit if that is no array of numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = made.compute() if hasattr(made, "compute") else made.result()
    if isinstance(found, (Mapping, list, tuple)):
        raise _Unfit(f"its value is a {type(found).__name__}, not a number or an array of numbers")
    found = found.detach().cpu() if hasattr(found, "detach") else found
    return np.asarray(found, dtype=np.float64)


def _settings_of_torch(value: Any) -> str:
    """What it has beyond any metric, and beyond its states: numbers, texts, lists of these, and tensors."""
    plain = vars(_bare(type(value)))
    if value._modules:
        raise _Unfit("it is made of other metrics; return those, each by its name")
    own = {
        name: _plain(each)
        for name, each in vars(value).items()
        if name not in plain and name not in value._defaults and _is_plain(each)
    }
    lists = {name: isinstance(each, list) for name, each in value._defaults.items()}
    constants = {name: _plain(each) for name, each in value._buffers.items() if each is not None}
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    return msgspec.json.encode([kind, own, constants, lists]).decode()


def _bare(kind: Any) -> Any:
    """An object of this class, with no more than any metric has."""
    base = importlib.import_module("torchmetrics").Metric
    made = kind.__new__(kind)
    base.__init__(made)
    return made


def _of_torch(settings: Any) -> Any:
    (kind, own, constants, lists) = settings
    module, _, name = kind.partition(":")
    if not f"{module}.".startswith(HOMES["torchmetrics"]):
        raise ProgramError(f"{kind!r} is no metric of torchmetrics.")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, importlib.import_module("torchmetrics").Metric)):
        raise ProgramError(f"{kind!r} is no metric of torchmetrics.")
    made = _bare(found)
    for label, each in own.items():
        setattr(made, label, _unplain(each))
    for label, each in constants.items():
        made.register_buffer(label, _unplain(each), persistent=False)
    made._in_lists = lists
    return made


def _settings_of_keras(value: Any) -> str:
    keras = importlib.import_module("keras")
    return msgspec.json.encode(keras.saving.serialize_keras_object(value)).decode()


def _of_keras(settings: Any) -> Any:
    if settings.get("module") != "keras.metrics" or settings.get("registered_name"):
        raise ProgramError(f"{settings.get('class_name')!r} is no metric of Keras.")
    if "tensorflow" not in sys.modules:  # this process computes nothing else with it
        threading = importlib.import_module("tensorflow").config.threading
        threading.set_intra_op_parallelism_threads(1)
        threading.set_inter_op_parallelism_threads(1)
    keras = importlib.import_module("keras")
    return keras.saving.deserialize_keras_object(settings, safe_mode=True)


def _rules_of_torch(value: Any) -> list[tuple[str, str]]:
    known = importlib.import_module("torchmetrics.utilities.data")
    rules = {getattr(known, f"dim_zero_{rule}"): rule for rule in RULES}
    for name, reduction in value._reductions.items():
        if reduction not in rules:
            raise _Unfit(f"its state {name!r} is not reduced by sum, mean, max, min or cat")
        if rules[reduction] == "sum" and value._defaults[name].any():
            raise _Unfit(f"its state {name!r}, a sum, begins with another value than 0")
    return [(name, rules[reduction]) for name, reduction in value._reductions.items()]


def _rules_of_keras(value: Any) -> list[tuple[str, str]]:
    """All of Keras's own add up, from 0 on; not so what a class that is derived of them may do."""
    return [(str(number), "sum") for number in range(len(value.variables))]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, str)) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, importlib.import_module("torch").Tensor)


def _plain(value: Any) -> Any:
    """As JSON can have it; all but lists, texts and whole numbers with what it is."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": {name: _plain(each) for name, each in value.items()}}
    if isinstance(value, float):
        return {"float": value.hex()}
    if _is_tensor(value):
        array = value.detach().cpu().numpy()
        return {"tensor": _plain(array.tolist()), "dtype": array.dtype.name}
    return str(value) if isinstance(value, str) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float.fromhex(value["float"])
    if "tuple" in value:
        return tuple(_unplain(each) for each in value["tuple"])
    if "tensor" in value:
        torch = importlib.import_module("torch")
        return torch.from_numpy(np.array(_unplain(value["tensor"]), value["dtype"]))
    return {name: _unplain(each) for name, each in value["dict"].items()}
