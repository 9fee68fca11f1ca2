"""Programs in two stages: what slices compute adds up to the gradient of the batch's cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import replicas
import tensorflow as tf
import torch

from elasticflow.api import SGD
from elasticflow.errors import ProgramError
from elasticflow.frameworks import Replica, open_replica
from elasticflow.frameworks.staged import entries_of, own_columns, whole_columns
from elasticflow.program.loading import Program
from elasticflow.step.layout import Rule, Vector

BATCH, WIDTH = 12, 4
SLICES = ((0, 3), (3, 6), (6, 9), (9, 12))


class OfTorch:
    @staticmethod
    def model() -> Any:
        query, item = (
            torch.nn.Linear(8, WIDTH),
            torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Dropout(0.5)),
        )
        return {"query": query, "item": item, "scale": torch.tensor(2.0), "optimizer": SGD(lr=0.1)}

    @staticmethod
    def encode(x: Any, y: Any, params: Any) -> Any:
        return {"query": params["query"](x), "item": params["item"](x.flip(1)), "y": y}

    @staticmethod
    def forward(query: Any, item: Any, y: Any, params: Any) -> Any:
        scores = params["scale"] * (query @ item.T)
        same = (y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)
        return torch.nn.functional.cross_entropy(scores.masked_fill(same, -9.0), torch.arange(len(y)))


class OfTensorFlow:
    @staticmethod
    def model() -> Any:
        keras = tf.keras
        item = keras.Sequential([keras.Input((8,)), keras.layers.Dense(WIDTH), keras.layers.Dropout(0.5)])
        query = keras.Sequential([keras.Input((8,)), keras.layers.Dense(WIDTH)])
        return {"query": query, "item": item, "scale": tf.Variable(2.0), "optimizer": SGD(lr=0.1)}

    @staticmethod
    def encode(x: Any, y: Any, params: Any) -> Any:
        return {"query": params["query"](x), "item": params["item"](tf.reverse(x, [1])), "y": y}

    @staticmethod
    def forward(query: Any, item: Any, y: Any, params: Any) -> Any:
        scores = params["scale"] * tf.matmul(query, item, transpose_b=True)
        same = tf.cast(y[:, None] == y[None], tf.float32) - tf.eye(len(y))
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(len(y)), scores - 9.0 * same)
        )


def opened(functions: Any) -> Replica:
    encode, forward = functions.encode, functions.forward
    program = Program("program.py", functions.model, forward, None, None, None, encode=encode)
    sample = replicas.columns(2)
    return open_replica(program, seed=1, threads=1, sample=sample, metric_arguments=None, batch_size=BATCH)


def encoded(replica: Replica, columns: dict[str, np.ndarray], places: list[np.ndarray]) -> Vector:
    """What all slices have sent of a batch."""
    total = Vector(replica.layout)
    for number, own in enumerate(places):
        found = replica.encode(replica.prepare({n: c[own] for n, c in columns.items()}), seed=number)
        for target, values in zip(total.tensors(replica.encoded), (np.float32(1), *found), strict=True):
            target[own] = values
    return total


@pytest.mark.parametrize("functions", [OfTorch, OfTensorFlow])
@pytest.mark.parametrize("missing", [(), (4, 11)])
def test_slices_add_up_to_the_batch(functions: Any, missing: tuple[int, ...]) -> None:
    replica, columns = opened(functions), replicas.columns(BATCH)
    there = np.setdiff1d(np.arange(BATCH), missing)
    places = [np.intersect1d(there, np.arange(*bounds)) for bounds in SLICES]
    states = replica.state.tensors(replica.encoded)
    for mine, theirs in zip(states, encoded(replica, columns, places).tensors(replica.encoded), strict=True):
        np.copyto(mine, theirs)
    whole = replica.prepare(whole_columns(replica.encoded, states, BATCH))
    sums, costs = dict[str, np.ndarray](), list[float]()
    for number, own in enumerate(places):
        share = len(own) / BATCH
        batch = replica.prepare({name: column[own] for name, column in columns.items()})
        more = replica.join(whole, replica.prepare(own_columns(own, share)))
        out = Vector(replica.layout)
        replica.compute(replica.join(batch, more), number, share, out)
        costs.append(out.groups[-1][0] / share)
        for name, gradient in replicas.values(replica, out, Rule.UPDATE).items():
            sums[name] = sums.get(name, 0) + gradient
    assert costs == pytest.approx([costs[0]] * len(costs), rel=1e-6), "each slice sees the whole batch"

    # By differences of the cost of the whole batch: each parameter by itself.
    def cost() -> float:
        arrays = encoded(replica, columns, places).tensors(replica.encoded)
        for mine, theirs in zip(states, arrays, strict=True):
            np.copyto(mine, theirs)
        known = replica.prepare(whole_columns(replica.encoded, states, BATCH))
        own = replica.prepare(own_columns(places[0], 1.0))
        batch = replica.prepare({name: column[places[0]] for name, column in columns.items()})
        out = Vector(replica.layout)
        replica.compute(replica.join(batch, replica.join(known, own)), 0, 1.0, out)
        return float(out.groups[-1][0])

    for entry in replica.layout.of_rule(Rule.UPDATE):
        [values] = replica.state.tensors([entry])
        flat, gradient = values.reshape(-1), sums[entry.name].reshape(-1)
        for at in range(0, len(flat), 5):
            before, found = flat[at], list[float]()
            for step in (1e-2, -1e-2):
                flat[at] = before + step
                replica.refresh()
                found.append(cost())
            flat[at] = before
            replica.refresh()
            scale = sum(len(own) for own in places) / BATCH if entry.name.startswith("scale") else 1.0
            assert scale * (found[0] - found[1]) / 2e-2 == pytest.approx(gradient[at], rel=0.02, abs=2e-3)


@pytest.mark.parametrize("functions", [OfTorch, OfTensorFlow])
def test_encoded_alike_in_both_ticks(functions: Any) -> None:
    replica, batch = opened(functions), replicas.columns(3)
    first = replica.encode(replica.prepare(batch), seed=5)
    replica.encode(replica.prepare(batch), seed=6)
    again = replica.encode(replica.prepare(batch), seed=5)
    other = replica.encode(replica.prepare(batch), seed=6)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))
    assert not all(np.array_equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


def test_what_encode_gives_is_what_forward_takes() -> None:
    def forward(query: Any, params: Any) -> None: ...

    def error_of(found: object) -> str:
        with pytest.raises(ProgramError) as caught:
            entries_of(found, forward, 2, 8)
        return str(caught.value)

    two = np.zeros((2, 3), np.float32)
    assert "must return a dict by name" in error_of(two)
    assert "first dimension must be that of the records" in error_of({"query": two[0]})
    assert "forward() takes query, and encode() returns item" in error_of({"item": two})
    assert "forward() takes query, and encode() returns query, item" in error_of({"query": two, "item": two})
    there, query = entries_of({"query": two}, forward, 2, 8)
    assert (there.name, there.shape, query.name, query.shape) == ("encoded", (8,), "encoded.query", (8, 3))
