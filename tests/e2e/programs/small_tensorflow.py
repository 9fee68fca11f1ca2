"""A Keras model with BatchNorm and dropout, a bare variable, and clipped gradients."""

import os
import time

import keras
import numpy as np
import tensorflow as tf

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))


def model():
    net = keras.Sequential(
        [
            keras.layers.Dense(32),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3),
        ]
    )
    return {"net": net, "scale": tf.Variable(tf.ones(3)), "optimizer": ef.AdamW(clip_norm=0.5)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(x, y, params):
    if SLICE_S:
        tf.py_function(lambda: time.sleep(SLICE_S), [], [])
    logits = params["net"](x) * params["scale"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def metrics(x, y, params):
    found = tf.argmax(params["net"](x), axis=1)
    return {"accuracy": tf.reduce_mean(tf.cast(found == y, tf.float32))}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(600, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    return {"train": {"x": x[:500], "y": y[:500]}, "test": {"x": x[500:], "y": y[500:]}}
