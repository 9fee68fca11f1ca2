"""Two towers, with all other items of a batch as negatives. The same in TensorFlow."""

import os
import time

import numpy as np

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))
OF_TENSORFLOW = "OF_TENSORFLOW" in os.environ

if OF_TENSORFLOW:
    import tensorflow as tf
else:
    import torch


def model():
    if OF_TENSORFLOW:
        dense = tf.keras.layers.Dense(8)
        dense.build((None, 12))
        return {
            "query": dense,
            "item": tf.ones((12, 8)),
            "scale": tf.Variable(5.0),
            "optimizer": ef.Adam(lr=0.01),
        }
    query = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2))
    return {
        "query": query,
        "item": torch.ones(12, 8),
        "scale": torch.tensor(5.0),
        "optimizer": ef.Adam(lr=0.01),
    }


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def encode(query, item, params):
    if SLICE_S:
        time.sleep(SLICE_S)
    if OF_TENSORFLOW:
        return {"query": params["query"](query), "item": tf.matmul(item, params["item"])}
    if "BAD" in os.environ and (query[:, 0] == float(os.environ["BAD"])).any():
        raise ValueError("a bad record")
    return {"query": params["query"](query), "item": item @ params["item"]}


def forward(query, item, params):
    if OF_TENSORFLOW:
        scores = params["scale"] * tf.matmul(query, item, transpose_b=True)
        labels = tf.range(tf.shape(query)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    scores = params["scale"] * (query @ item.T)
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(query)))


def data():
    random = np.random.default_rng(0)
    query = random.normal(size=(300, 12)).astype(np.float32)
    query[:, 0] = np.arange(300)
    item = (query * 0.5 + random.normal(size=query.shape)).astype(np.float32)
    columns = {"query": query, "item": item}
    return {
        "train": ef.data.Arrays(**{name: column[:240] for name, column in columns.items()}),
        "test": ef.data.Arrays(**{name: column[240:] for name, column in columns.items()}),
    }
