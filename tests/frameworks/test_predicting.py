"""``predict`` of a program: in inference mode, of any device, and without a trace in the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replicas import columns, program  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import elasticflow as ef  # noqa: E402
from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import Replica, open_replica  # noqa: E402


def model() -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout())
    return {"net": net, "words": ef.Embedding(None, 4, initializer=ef.Normal(std=0.5))}


def forward(x: Any, y: Any, params: Any) -> Any:
    return cross_entropy(params["net"](x) + params["words"](y), y)


def opened(predict: Any, device: str = "cpu") -> Replica:
    whole = replace(program(model, forward), predict=predict)
    options: dict[str, Any] = {"seed": 3, "threads": 1, "sample": columns(2), "metric_arguments": None}
    return open_replica(whole, **options, device=device)


def scores(x: Any, y: Any, params: Any) -> dict[str, Any]:
    found = (params["net"](x) + params["words"](y)).softmax(1)
    return {"score": found, "best": found.argmax(1), "half": found[:, 0].to(torch.bfloat16)}


def test_all_devices_predict_alike_and_leave_no_trace() -> None:
    found = []
    for device in ("cpu", "delayed"):
        replica = opened(scores, device)
        before = [group.copy() for group in replica.state.groups]
        for _ in range(2):  # the model is in inference mode: there is no chance in it
            found.append(replica.predict(replica.prepare(columns()), 5))
        assert all((a == b).all() for a, b in zip(before, replica.state.groups, strict=True))
        assert [each.training for each in replica.params["net"]] == [False] * 3
    assert {name: (array.shape, array.dtype.name) for name, array in found[0].items()} == {
        "score": ((12, 4), "float32"),
        "best": ((12,), "int64"),
        "half": ((12,), "float32"),
    }
    for other in found[1:]:
        assert all((other[name] == array).all() for name, array in found[0].items())


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        (lambda x, y, params: params["net"](x).mean(), "a value of float32"),
        (lambda x, y, params: params["net"](x)[:3], r"an array \[3, 4\] of float32"),
        (lambda x, y, params: {}, "a dict that is empty"),
        (lambda x, y, params: {1: x}, "keys that are no names"),
        (lambda x, y, params: {"a": [None] * len(x)}, "an array .* of object"),
        (lambda x, y, params: None, "a value of object"),
        (lambda x, y, params: np.ma.masked_less(x[:, 0].numpy(), 0), "a masked array"),
        (lambda x, y, params: params["net"][0].weight.zero_() + 1, r"predict\(\) has changed .*weight"),
    ],
)
def test_what_is_no_prediction_is_refused(predict: Any, words: str) -> None:
    replica = opened(predict)
    with pytest.raises(ProgramError, match=words):
        replica.predict(replica.prepare(columns()), 5)


def test_one_array_has_a_name() -> None:
    replica = opened(lambda x, y, params: x.sum(1))
    np.testing.assert_allclose(
        replica.predict(replica.prepare(columns()), 5)["prediction"], columns()["x"].sum(1), rtol=1e-5
    )


def test_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    import keras

    def model() -> dict[str, Any]:
        layers = [keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization()]
        net = keras.Sequential([*layers, keras.layers.Dropout(0.5)])
        return {"net": net, "words": ef.Embedding(None, 4, initializer=ef.Normal(std=0.5))}

    def forward(x: Any, y: Any, params: Any) -> Any:
        logits = params["net"](x) + params["words"](y)
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

    def predict(x: Any, y: Any, params: Any) -> Any:
        found = keras.ops.softmax(params["net"](x) + params["words"](y))
        return {"score": found, "half": tf.cast(found[:, 0], tf.bfloat16)}

    whole = replace(program(model, forward), predict=predict)
    options: dict[str, Any] = {"seed": 3, "threads": 1, "sample": columns(2), "metric_arguments": None}
    replica = open_replica(whole, **options)
    before = [group.copy() for group in replica.state.groups]
    found = [replica.predict(replica.prepare(columns()), 5) for _ in range(2)]
    assert found[0]["score"].shape == (12, 4) and found[0]["half"].dtype == np.float32
    assert all((found[1][name] == array).all() for name, array in found[0].items())
    assert all((a == b).all() for a, b in zip(before, replica.state.groups, strict=True))
    bad = replace(program(model, forward), predict=lambda x, params: keras.ops.mean(params["net"](x)))
    replica = open_replica(bad, **options)
    with pytest.raises(ProgramError, match="a value of float32"):
        replica.predict(replica.prepare({"x": columns()["x"]}), 5)
