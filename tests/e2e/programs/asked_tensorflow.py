"""A Keras model that slows down after its first epoch, and ends with its third. It has no learning_rate()."""

import keras
import numpy as np
import tensorflow as tf

import elasticflow as ef


def model():
    net = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
    return {"net": net, "optimizer": keras.optimizers.Adam(0.01)}


def forward(x, y, params):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=params["net"](x))
    return tf.reduce_mean(losses)


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(160, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    return {"train": {"x": x[:128], "y": y[:128]}, "test": {"x": x[128:], "y": y[128:]}}


def on_epoch(info):
    assert abs(info.learning_rate - (0.005 if info.epoch else 0.01)) < 1e-8
    if info.epoch == 2:
        return ef.stop("three epochs")
    return None if info.epoch else ef.go_on(lr_scale=0.5)
