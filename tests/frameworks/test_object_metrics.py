"""Metrics that are objects of torchmetrics and Keras: what the library gives for the whole test source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from replicas import program

from elasticflow.data.opening import PartOfTests
from elasticflow.errors import ProgramError
from elasticflow.frameworks import Replica, open_replica
from elasticflow.training.metrics import add, final, size_of

SIZE, SLICES = 203, 8
RNG = np.random.default_rng(3)
RECORDS = {"x": RNG.normal(size=(SIZE, 3)).astype(np.float32), "y": RNG.integers(0, 3, SIZE)}
RECORDS["x"][np.arange(SIZE), RECORDS["y"]] += 1


def opened(model: Any, forward: Any, metrics: Any, num_test: int = SIZE) -> Replica:
    sample = {name: column[:2] for name, column in RECORDS.items()}
    of = program(model, forward, metrics)
    return open_replica(
        of,
        seed=1,
        threads=1,
        sample=sample,
        metric_arguments=("x", "y"),
        tests=[PartOfTests("", 0, num_test)],
    )


def evaluated(replica: Replica, shares: Sequence[range]) -> dict[str, float]:
    """As the first server makes it of what workers push, one a share of the slices, along the tree."""
    measures = replica.metrics.measures

    def of_slice(number: int) -> np.ndarray:
        sums = np.zeros(size_of(measures))
        first, last = (place * SIZE // SLICES for place in (number, number + 1))
        middle = (first + last) // 2
        for start, stop in ((first, middle), (middle, last)):
            batch = {name: column[start:stop] for name, column in RECORDS.items()}
            replica.evaluate(replica.prepare(batch), 0)
            for measure, inputs in zip(measures, replica.measured, strict=True):
                add(measure, inputs, start, stop, sums, number)
        return sums

    found = {number: of_slice(number) for share in shares for number in share}
    level = [found[number] for number in range(SLICES)]
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return {name: value for measure in measures for name, value in final(measure, level[0]).items()}


SHARES = ([range(8)], [range(4, 8), range(4)], [range(6, 8), range(3), range(3, 6)])
"""Of one, two and three workers, the last of which is the first to compute."""


def flat(name: str, value: Any) -> dict[str, float]:
    array = np.asarray(value, np.float64)
    if not array.shape:
        return {name: float(array)}
    return {f"{name}[{','.join(map(str, place))}]": float(array[place]) for place in np.ndindex(array.shape)}


def test_those_of_torchmetrics() -> None:
    tm = pytest.importorskip("torchmetrics")
    torch = pytest.importorskip("torch")
    kinds: dict[str, Callable[[], Any]] = {
        "accuracy": partial(tm.Accuracy, task="multiclass", num_classes=3),
        "auroc": partial(tm.AUROC, task="multiclass", num_classes=3, thresholds=50),
        "exact": partial(tm.AUROC, task="multiclass", num_classes=3),
        "f1": partial(tm.F1Score, task="multiclass", num_classes=3, average="macro"),
        "each": partial(tm.F1Score, task="multiclass", num_classes=3, average=None),
        "confusion": partial(tm.ConfusionMatrix, task="multiclass", num_classes=3),
    }
    others: dict[str, Callable[[], Any]] = {
        "mse": tm.MeanSquaredError,
        "r2": tm.R2Score,
        "most": tm.MaxMetric,
    }
    kept = {name: kind() for name, kind in kinds.items()}

    def updated(objects: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        for name, each in objects.items():
            if name in kinds:
                each.update(x.softmax(1), y)
            elif name == "most":
                each.update(x)
            else:
                each.update(x[:, 0], y.float())
        return objects

    def metrics(x: Any, y: Any, params: Any) -> dict[str, Any]:
        """Some are made anew each time, others are not."""
        made = {name: kind() for name, kind in others.items()}
        return {"plain": x.mean(), **updated({**kept, **made}, x * params["w"], y)}

    replica = opened(
        lambda: {"w": torch.ones(3)}, lambda x, y, params: (x * params["w"]).square().mean(), metrics
    )
    found = [evaluated(replica, shares) for shares in SHARES]
    assert found[0] == found[1] == found[2]
    whole = updated(
        {name: kind() for name, kind in (kinds | others).items()},
        torch.from_numpy(RECORDS["x"]),
        torch.from_numpy(RECORDS["y"]),
    )
    theirs = {n: v for name, each in whole.items() for n, v in flat(name, each.compute()).items()}
    assert found[0] == pytest.approx(theirs, rel=1e-5)
    assert found[0]["confusion[1,1]"] == theirs["confusion[1,1]"] > 0
    assert replica.metrics.names[0] == "plain" and set(theirs) == set(replica.metrics.names[1:])


def test_those_of_keras() -> None:
    tf = pytest.importorskip("tensorflow")
    keras = tf.keras
    kinds: dict[str, Callable[[], Any]] = {
        "accuracy": keras.metrics.SparseCategoricalAccuracy,
        "auc": partial(keras.metrics.AUC, num_thresholds=50),
        "mean": keras.metrics.Mean,
        "iou": partial(keras.metrics.MeanIoU, num_classes=3, sparse_y_pred=False),
        "precision": partial(keras.metrics.Precision, thresholds=[0.3, 0.6]),
    }
    kept: dict[str, Any] = {}

    def updated(objects: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        scores = tf.nn.softmax(x)
        for name, each in objects.items():
            if name == "mean":
                each.update_state(x)
            elif name in ("auc", "precision"):
                each.update_state(y == 1, scores[:, 1])
            else:
                each.update_state(y, scores)
        return objects

    def model() -> dict[str, Any]:
        kept.update({name: kind() for name, kind in kinds.items()})
        return {"w": tf.ones(3)}

    def metrics(x: Any, y: Any, params: Any) -> dict[str, Any]:
        return updated(dict(kept), x * params["w"], y)

    replica = opened(model, lambda x, y, params: tf.reduce_mean((x * params["w"]) ** 2), metrics)
    found = [evaluated(replica, shares) for shares in SHARES]
    assert found[0] == found[1] == found[2]
    whole = updated({name: kind() for name, kind in kinds.items()}, RECORDS["x"], RECORDS["y"])
    theirs = {n: v for name, each in whole.items() for n, v in flat(name, each.result()).items()}
    assert found[0] == pytest.approx(theirs, rel=1e-5)


def refused(made: Any, update: Callable[[Any, Any, Any], Any], words: str, num_test: int = SIZE) -> None:
    torch = pytest.importorskip("torch")

    def metrics(x: Any, y: Any, params: Any) -> dict[str, Any]:
        update(made, x * params["w"], y)
        return {"m": made}

    with pytest.raises(ProgramError, match=words):
        opened(lambda: {"w": torch.ones(3)}, lambda x, y, params: params["w"].sum(), metrics, num_test)


def test_those_of_torchmetrics_that_cannot_be_taken() -> None:
    tm = pytest.importorskip("torchmetrics")

    def pair(made: Any, x: Any, y: Any) -> None:
        made.update(x[:, 0], y.float())

    def scores(made: Any, x: Any, y: Any) -> None:
        made.update(x.softmax(1), y)

    class Own(tm.MeanSquaredError):
        pass

    auroc = tm.AUROC(task="multiclass", num_classes=3)
    refused(
        auroc, scores, r"6,000,000 sums; .* have 'm' keep nothing of each record: by thresholds=", 1_000_000
    )
    refused(tm.PearsonCorrCoef(), pair, "PearsonCorrCoef.*'mean_x' is not reduced by sum, mean")
    refused(Own(), pair, "Own.*its class is none of torchmetrics' or Keras's own.*ef.metrics.auc")
    refused(tm.MinMaxMetric(tm.MeanSquaredError()), pair, "MinMaxMetric.*it is made of other metrics")
    refused(tm.MetricCollection([tm.MeanSquaredError()]), pair, "MetricCollection.*ef.metrics")


def test_those_of_keras_that_cannot_be_taken() -> None:
    tf = pytest.importorskip("tensorflow")

    class Greatest(tf.keras.metrics.Mean):  # type: ignore[misc, name-defined]
        def update_state(self, values: Any, sample_weight: Any = None) -> None:
            self.total.assign(tf.maximum(self.total, tf.reduce_max(values)))

    for kind, words in (
        (Greatest, "Greatest.*its class is none of torchmetrics' or Keras's own"),
        (tf.keras.metrics.F1Score, "F1Score.*its variables follow from its first batch"),
    ):
        kept: list[Any] = []

        def model(kind: Any = kind, kept: list[Any] = kept) -> dict[str, Any]:
            kept.append(kind())
            return {"w": tf.ones(3)}

        def metrics(x: Any, y: Any, params: Any, kept: list[Any] = kept) -> dict[str, Any]:
            made = kept[-1]
            if isinstance(made, Greatest):
                made.update_state(x)
            else:
                made.update_state(tf.one_hot(y, 3), x)
            return {"m": made}

        with pytest.raises(ProgramError, match=words):
            opened(model, lambda x, y, params: tf.reduce_sum(params["w"]), metrics)
