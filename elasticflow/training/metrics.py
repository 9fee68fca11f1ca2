"""Metrics that are right for a whole test source: of each slice what can be summed, and a number from that.

    def metrics(x, y, params):
        scores = params["net"](x)
        return {"accuracy": ef.metrics.accuracy(scores, y), "auc": ef.metrics.auc(scores[:, 1], y)}

A plain number in that dict is a mean over the records of a slice, and then over all; an area under a curve is
no such mean. Sums are added along the tree of slices, in float64, so bits do not depend on who computed what.
Arrays are (n,), or (n, classes) for scores by class; those of either framework, or NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from elasticflow.errors import ProgramError
from elasticflow.training.objects import ComputeError, ObjectMetric, add_states, computed, size_of_states

Sums = npt.NDArray[np.float64]
Values = npt.NDArray[Any]

BINS = 1 << 16
"""Scores of so many test records are kept one by one; of more, in so many bins."""
MOST_CLASSES = 256
MOST_SUMS = (4 << 20) // 8
"""Of all metrics together: they travel in one message."""


class SummedMetric(msgspec.Struct, frozen=True):
    """A metric of summed numbers: ``size`` of them, from ``start`` on among those of all metrics.

    kind: which one; "object": it is one of a library, ``of``. low, high: of scores in bins. exact: whether
    each record has a place of its own.
    """

    name: str
    kind: str
    start: int
    size: int
    low: float = 0.0
    high: float = 1.0
    exact: bool = False
    of: ObjectMetric | None = None

    @property
    def names(self) -> list[str]:
        """Of the numbers that it gives: one, but for an object whose value is an array."""
        return self.of.names(self.name) if self.of else [self.name]


class Summed(NamedTuple):
    """What a metric is made of, of some records, before it is summed. Made by the functions below."""

    kind: str
    inputs: tuple[Any, ...]
    classes: int = 0
    low: float = 0.0
    high: float = 1.0


# --- for a program ---------------------------------------------------------------------------------


def mean(values: Any, weights: Any = None) -> Summed:
    """Of one value a record, or weighted."""
    return Summed("ratio", (values,) if weights is None else (values, weights))


def accuracy(predictions: Any, targets: Any) -> Summed:
    """The share of right ones. predictions: classes, scores by class, or floating numbers, 1 from 0.5 on."""
    return Summed("accuracy", (predictions, targets))


def rmse(predictions: Any, targets: Any) -> Summed:
    """The root of the mean squared error."""
    return Summed("rmse", (predictions, targets))


def r2(predictions: Any, targets: Any) -> Summed:
    """The coefficient of determination."""
    return Summed("r2", (predictions, targets))


def auc(scores: Any, targets: Any, *, low: float = 0.0, high: float = 1.0) -> Summed:
    """The area under the ROC curve, of targets 0 or 1; equal scores count one half.

    Exact for up to 65,536 test records. Of more, scores from ``low`` to ``high`` are in 65,536 bins.
    """
    if not low < high:
        raise ProgramError(f"metrics.auc(low={low!r}, high={high!r}): low must be less than high.")
    return Summed("auc", (scores, targets), low=float(low), high=float(high))


def precision(predictions: Any, targets: Any, classes: int = 2) -> Summed:
    """Of class 1 if there are two, otherwise the mean over those that occur."""
    return _of_classes("precision", predictions, targets, classes)


def recall(predictions: Any, targets: Any, classes: int = 2) -> Summed:
    """As ``precision``."""
    return _of_classes("recall", predictions, targets, classes)


def f1(predictions: Any, targets: Any, classes: int = 2) -> Summed:
    """As ``precision``."""
    return _of_classes("f1", predictions, targets, classes)


def _of_classes(kind: str, predictions: Any, targets: Any, classes: int) -> Summed:
    if not isinstance(classes, int) or not 2 <= classes <= MOST_CLASSES:
        raise ProgramError(
            f"metrics.{kind}(classes={classes!r}): must be a whole number from 2 to {MOST_CLASSES}."
        )
    return Summed(kind, (predictions, targets), classes)


def size_of(measures: Sequence[SummedMetric]) -> int:
    """How many sums there are of all of these."""
    return sum(measure.size for measure in measures)


def roughness(measure: SummedMetric) -> str:
    """What people are to know of how it is made; "" if it is exact."""
    if measure.kind != "auc" or measure.exact:
        return ""
    return (
        f"metrics(): {measure.name} is made of {BINS:,} bins of scores from {measure.low:g} to "
        f"{measure.high:g}, since there are more than {BINS:,} test records"
    )


# --- sums ------------------------------------------------------------------------------------------


def measures_of(
    found: dict[str, Any], num_test: int, prefix: str = "", start: int = 0
) -> tuple[SummedMetric, ...]:
    """Of what metrics() returned, those that are summed. Raises ProgramError if that is too much.

    found: an ``ObjectMetric`` in the place of an object. prefix: of names. start: where their sums begin.
    """
    measures: list[SummedMetric] = []
    for name, each in ((prefix + name, each) for name, each in found.items()):
        if isinstance(each, ObjectMetric):
            size = size_of_states(each, num_test)
            measures.append(SummedMetric(name, "object", start, size, of=each))
            start += size
        elif isinstance(each, Summed):
            exact = each.kind == "auc" and num_test <= BINS
            size = (
                2 * (max(1, num_test) if exact else BINS) if each.kind == "auc" else _SIZES.get(each.kind, 2)
            )
            size = each.classes**2 if each.classes else size
            measures.append(SummedMetric(name, each.kind, start, size, each.low, each.high, exact))
            start += size
    if start > MOST_SUMS:
        raise ProgramError(
            f"metrics(): {start:,} sums; there can be at most {MOST_SUMS:,}: leave some out{_way(measures)}."
        )
    return tuple(measures)


def _way(measures: Sequence[SummedMetric]) -> str:
    """What to do about objects that keep something of each record."""
    keeping = [m.name for m in measures if m.of and any(state.rule == "cat" for state in m.of.states)]
    if not keeping:
        return ""
    return (
        f", or have {keeping[0]!r} keep nothing of each record: by thresholds=, if it has that, or as a "
        "metric of ef.metrics"
    )


def add(
    measure: SummedMetric, inputs: Sequence[Values], first: int, last: int, sums: Sums, place: int = 0
) -> None:
    """Adds records ``first..last``, which are of slice ``place``, to the sums of all metrics.

    Raises ProgramError if there is not one value a record, or one that cannot be.
    """
    mine = sums[measure.start : measure.start + measure.size]
    if measure.of:
        return add_states(measure.of, inputs, first, last, place, mine)
    predictions, *others = (np.asarray(each) for each in inputs)
    if predictions.ndim == 2 and predictions.shape[1] == 1:
        predictions = predictions[:, 0]
    others = [each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for each in others]
    lengths = {each.shape[:1] for each in (predictions, *others)}
    if len(lengths) > 1 or predictions.ndim not in (1, 2) or any(each.ndim != 1 for each in others):
        shapes = ", ".join(str(each.shape) for each in (predictions, *others))
        raise ProgramError(f"metrics(): {measure.name!r} is of arrays of shape {shapes}; they must be (n,).")
    if measure.kind == "auc" and not ((others[0] == 0) | (others[0] == 1)).all():
        raise ProgramError(
            f"metrics(): {measure.name!r} has targets other than 0 and 1; it is auc(scores, targets), in "
            "this order."
        )
    if measure.kind in ("precision", "recall", "f1"):
        classes = math.isqrt(measure.size)
        np.add.at(mine, _pairs(measure, classes, predictions, others[0]), 1)
    elif measure.kind == "auc" and measure.exact:
        mine[2 * first : 2 * (first + len(predictions))] += np.stack(
            [predictions.astype(np.float64), others[0].astype(np.float64) + 1], 1
        ).reshape(-1)
    elif measure.kind == "auc":
        share = (predictions.astype(np.float64) - measure.low) / (measure.high - measure.low)
        bins = np.clip(np.nan_to_num(share) * BINS, 0, BINS - 1).astype(np.int64)
        np.add.at(mine, bins + BINS * (others[0] > 0), 1)  # few records: not all sums are gone through
    else:
        mine += _ADDED[measure.kind](predictions, *others)


Compute: TypeAlias = Callable[[ObjectMetric, Sums], list[float]]
"""As ``computed`` does it, and with its errors."""


def final(measure: SummedMetric, sums: Sums, compute: Compute = computed) -> dict[str, float]:
    """What the metric gives, by name, from the sums of all. compute: what libraries' objects come to.

    NaN where there is nothing, such as where all targets are equal, or a library raises.
    """
    mine = sums[measure.start : measure.start + measure.size]
    if measure.of:
        return dict(zip(measure.names, _values_of(measure, measure.of, mine, compute), strict=True))
    with np.errstate(all="ignore"):
        return {measure.name: float(_FINAL[measure.kind](measure, mine))}


def _values_of(measure: SummedMetric, taken: ObjectMetric, mine: Sums, compute: Compute) -> list[float]:
    try:
        found = compute(taken, mine)
        problem = f"gave {len(found)} values"
    except ComputeError as error:
        found, problem = [], f"raised {error}"
    if len(found) == len(measure.names):
        return found
    print(f"metrics(): {measure.name} of {taken.library} {problem}; it is told as nan", flush=True)
    return [math.nan] * len(measure.names)


def _sum(values: Values) -> float:
    """Rounded once: it does not matter how a library groups its terms."""
    return math.fsum(values.astype(np.float64).tolist())


def _classes_of(predictions: Values) -> Values:
    if predictions.ndim == 2:
        return np.asarray(predictions.argmax(1))
    return np.asarray(predictions >= 0.5) if predictions.dtype.kind == "f" else predictions


def _pairs(
    measure: SummedMetric, classes: int, predictions: Values, targets: Values
) -> npt.NDArray[np.int64]:
    """Of each record, target * classes + prediction."""
    found = [each.astype(np.int64) for each in (targets, _classes_of(predictions))]
    if any(len(each) and not 0 <= each.min() <= each.max() < classes for each in found):
        raise ProgramError(f"metrics(): {measure.name!r} has classes other than 0 to {classes - 1}.")
    pairs: npt.NDArray[np.int64] = found[0] * classes + found[1]
    return pairs


def _ratio(values: Values, weights: Values | None = None) -> list[float]:
    if weights is None:
        return [_sum(values), float(len(values))]
    return [_sum(values.astype(np.float64) * weights.astype(np.float64)), _sum(weights)]


def _accuracy(predictions: Values, targets: Values) -> list[float]:
    return [float(np.count_nonzero(_classes_of(predictions) == targets)), float(len(targets))]


def _squares(predictions: Values, targets: Values) -> list[float]:
    misses = predictions.astype(np.float64) - targets.astype(np.float64)
    return [_sum(misses * misses), float(len(targets))]


def _moments(predictions: Values, targets: Values) -> list[float]:
    exact = targets.astype(np.float64)
    return [*_squares(predictions, targets), _sum(exact), _sum(exact * exact)]


def _r2(measure: SummedMetric, sums: Sums) -> float:
    missed, count, total, squares = sums
    return float(1 - missed / (squares - total * total / count))


def _auc(measure: SummedMetric, sums: Sums) -> float:
    """Of bins, or of equal scores: (negatives, positives) in ascending order."""
    if measure.exact:
        scores, targets = sums[::2], sums[1::2]
        there = targets > 0
        if np.isnan(scores[there]).any():
            return math.nan
        _, groups = np.unique(scores[there], return_inverse=True)
        positive = targets[there] > 1
        pairs = [np.bincount(groups, weights=kind, minlength=1) for kind in (~positive, positive)]
        negatives, positives = (each.astype(np.float64) for each in pairs)
    else:
        negatives, positives = sums.reshape(2, -1)
    below = np.cumsum(negatives) - negatives
    both = negatives.sum() * positives.sum()
    return float((positives * (below + negatives / 2)).sum() / both) if both else math.nan


def _by_class(measure: SummedMetric, sums: Sums) -> float:
    classes = math.isqrt(measure.size)
    table = sums.reshape(classes, classes)
    right, meant, said = np.diagonal(table), table.sum(1), table.sum(0)
    above, below = {"precision": (right, said), "recall": (right, meant), "f1": (2 * right, said + meant)}[
        measure.kind
    ]
    each = np.where(below > 0, above / below, 0.0)
    occurs = (meant + said) > 0
    return float(each[1] if classes == 2 else each[occurs].mean())


_SIZES = {"r2": 4}
_ADDED: dict[str, Callable[..., list[float]]] = {
    "ratio": _ratio,
    "accuracy": _accuracy,
    "rmse": _squares,
    "r2": _moments,
}
_FINAL: dict[str, Callable[[SummedMetric, Sums], float]] = {
    "ratio": lambda measure, sums: float(sums[0] / sums[1]),
    "accuracy": lambda measure, sums: float(sums[0] / sums[1]),
    "rmse": lambda measure, sums: math.sqrt(sums[0] / sums[1]),
    "r2": _r2,
    "auc": _auc,
    "precision": _by_class,
    "recall": _by_class,
    "f1": _by_class,
}
