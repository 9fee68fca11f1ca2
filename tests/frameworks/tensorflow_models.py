"""Small TensorFlow programs."""

from __future__ import annotations

import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from replicas import program

from elasticflow import Constant, Embedding, Normal


def cross_entropy(y, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def accuracy(x, y, params):
    hits = tf.argmax(params["net"](x), axis=1) == y
    return {"accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)), "always 1": 1.0}


def net_forward(x, y, params):
    return cross_entropy(y, params["net"](x))


def mlp():
    """Not built: its layers learn the width of their input from the first call."""
    return {"net": keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(4)])}


def norm():
    return {
        "net": keras.Sequential(
            [
                keras.Input((8,)),
                layers.Reshape((8, 1)),
                layers.Conv1D(6, 3),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dropout(0.4),
                layers.Flatten(),
                layers.GaussianNoise(0.1),
                layers.Dense(4),
            ]
        )
    }


def functional():
    x = keras.Input((8,))
    hidden = layers.Dense(6, activation="tanh")(x)
    both = layers.Concatenate()([x, hidden])
    return {"net": keras.Model(x, layers.Dense(4)(layers.Dropout(0.2)(both)))}


class Mixture(keras.Model):
    """Layers in lists and dicts, a plain variable, a weight without a name."""

    def __init__(self):
        super().__init__()
        self.experts = [layers.Dense(4), layers.Dense(4)]
        self.named = {"gate": layers.Dense(2, activation="softmax")}
        self._scale = self.add_weight(shape=(4,), initializer="ones")
        self.shift = tf.Variable(tf.zeros(4))

    def call(self, x):
        gate = self.named["gate"](x)
        out = sum(gate[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts))
        return out * self._scale + self.shift


def mixture():
    return {"net": Mixture()}


def bare():
    return {
        "weight": tf.random.normal((8, 4)) / 8,
        "bias": tf.Variable(tf.zeros(4)),
        "columns": tf.constant([7, 2, 1, 0, 3, 4, 5, 6]),
    }


def bare_forward(x, y, params):
    return cross_entropy(y, tf.gather(x, params["columns"], axis=1) @ params["weight"] + params["bias"])


class Attention(tf.Module):
    """A module without Keras: a mask with infinite numbers, a table, a counter, and a running mean."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.random.normal((8, 4)))
        self.mask = tf.Variable(tf.linalg.set_diag(tf.fill((8, 8), -np.inf), tf.zeros(8)), trainable=False)
        self.calls = tf.Variable(0)
        self.mean = tf.Variable(0.0, trainable=False)

    def __call__(self, x):
        self.calls.assign_add(1)
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x))
        keys = tf.nn.embedding_lookup(self.table, [0, 1, 2, 3, 4, 5, 6, 6])
        return x @ tf.nn.softmax(keys @ tf.transpose(keys) + self.mask) @ keys


def attention():
    return {"net": Attention()}


def branching_forward(x, y, params):
    cost = net_forward(x, y, params)
    if tf.reduce_mean(x) > 0:  # becomes a part of the graph
        cost *= 2
    return cost


def dropout_forward(x, y, params):
    return net_forward(tf.nn.dropout(x, 0.3), y, params)


@tf.function
def decorated_forward(x, y, params):
    return branching_forward(x, y, params)


@tf.function
def _shaken(x):
    return x + tf.random.normal(tf.shape(x)) + tf.random.get_global_generator().normal([])


def function_forward(x, y, params):
    return net_forward(_shaken(x), y, params)


def keras_random_forward(x, y, params):
    return net_forward(x + keras.random.normal((8,)), y, params)


def numpy_forward(x, y, params):
    return net_forward(x + random.random() + np.random.normal(), y, params)


def untraceable_forward(x, y, params):
    return net_forward(x * float(x.numpy().mean()), y, params)


class Towers(keras.Model):
    """Has tables beside its layers, one of them in a list."""

    def __init__(self):
        super().__init__()
        self.users = Embedding(None, 6, initializer=Normal(std=0.5))
        self.others = [Embedding(8, 4, initializer=Constant(0.25))]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(4)

    def call(self, x):
        ids = tf.cast(3 * x, tf.int64)
        bags = self.users(ids, combine="mean", padding=0)
        twice = tf.reduce_sum(self.users(ids[:, :2]), 1)
        single = self.others[0](ids[:, 0] % 8)
        return self.head(self.drop(self.norm(tf.concat([bags + twice, single], 1))))


def towers():
    return {"net": Towers()}


def tables_alone():
    return {"table": Embedding(None, 4)}


def tables_alone_forward(x, y, params):
    ids = tf.ragged.boolean_mask(tf.cast(4 * x, tf.int32), x > -1)
    return cross_entropy(y, params["table"](ids, combine="sum"))


def looping_forward(x, y, params):
    """Its loop would be one of the graph."""
    rows = tf.map_fn(lambda ids: params["table"](ids, combine="sum"), tf.cast(4 * x, tf.int64), tf.float32)
    return cross_entropy(y, rows)


PROGRAMS = {
    "mlp": program(mlp, net_forward, accuracy),
    "norm": program(norm, net_forward, accuracy),
    "functional": program(functional, net_forward),
    "mixture": program(mixture, net_forward),
    "bare": program(bare, bare_forward),
    "attention": program(attention, net_forward),
    "decorated": program(norm, decorated_forward, accuracy),
    "towers": program(towers, net_forward, accuracy),
    "tables alone": program(tables_alone, tables_alone_forward),
    # A graph will not do for these:
    "dropout": program(mlp, dropout_forward),
    "function": program(mlp, function_forward),
    "keras.random": program(mlp, keras_random_forward),
    "numpy": program(mlp, numpy_forward),
    "untraceable": program(mlp, untraceable_forward),
    "table in a loop": program(tables_alone, looping_forward),
}
