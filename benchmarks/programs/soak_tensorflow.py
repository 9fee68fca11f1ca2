"""A Keras model with BatchNorm and dropout, whose slices take SLICE_S seconds more than they need."""

import time

import keras
import numpy as np
import tensorflow as tf
from soak_live import RECORDS, SLICE_S, TESTS

import elasticflow as ef


def model():
    net = keras.Sequential(
        [
            keras.layers.Dense(64),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3),
        ]
    )
    return {"net": net, "scale": tf.Variable(tf.ones(3)), "optimizer": ef.AdamW(lr=0.01)}


def forward(x, y, params):
    tf.py_function(lambda: time.sleep(SLICE_S), [], [])
    logits = params["net"](x) * params["scale"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def metrics(x, y, params):
    found = tf.argmax(params["net"](x), axis=1)
    return {"accuracy": tf.reduce_mean(tf.cast(found == y, tf.float32))}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS + TESTS, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    train, test = slice(0, RECORDS), slice(RECORDS, None)
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}
