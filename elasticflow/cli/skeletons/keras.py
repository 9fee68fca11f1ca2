"""A program of ElasticFlow's: what is trained, on what, and what it costs. No loop, no ranks."""

import keras
import numpy as np

import elasticflow as ef

ARGS = ef.args(lr=0.01, width=32)
"""Of the command line: elasticflow train program.py --set lr=0.1"""


def model():
    """All that is trained, by name, and one optimizer (ef.Adam, ... or keras.optimizers')."""
    layers = [keras.layers.Input((4,)), keras.layers.Dense(ARGS.width, "relu"), keras.layers.Dense(2)]
    return {"net": keras.Sequential(layers), "optimizer": ef.Adam(lr=ARGS.lr)}


def forward(x, y, params):
    """The cost of some records: their mean. Its arguments are the columns of the data."""
    costs = keras.losses.sparse_categorical_crossentropy(y, params["net"](x), from_logits=True)
    return keras.ops.mean(costs)


def metrics(x, y, params):
    """Means over the test source, shown after each epoch. May be left out."""
    right = keras.ops.equal(keras.ops.argmax(params["net"](x), axis=1), y)
    return {"accuracy": keras.ops.mean(keras.ops.cast(right, "float32"))}


def predict(x, params):
    """What 'elasticflow predict RUN --data FILE --out FILE', and exports, compute. May be left out."""
    return keras.ops.softmax(params["net"](x))


def data():
    """Records to train on, and to test with; see docs/data.md for files, texts and datasets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    return {"train": {"x": x[:1600], "y": y[:1600]}, "test": {"x": x[1600:], "y": y[1600:]}}
