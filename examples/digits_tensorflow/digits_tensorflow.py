"""Handwritten digits, 8 by 8 pixels each, with Keras layers. See README.md."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import elasticflow as ef


def data():
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))  # the same in every process
    test, train = np.split(order, [len(x) // 5])
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}


def model():
    # Layers without an input shape are built from the first records. Dropout and BatchNormalization
    # know by themselves whether they are being trained.
    net = keras.Sequential(
        [layers.Dense(64), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2), layers.Dense(10)]
    )
    return {"net": net, "optimizer": ef.SGD(lr=0.1, momentum=0.9)}


def forward(x, y, params):
    costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=params["net"](x))
    return tf.reduce_mean(costs)


def metrics(x, y, params):
    hits = tf.argmax(params["net"](x), axis=1) == y
    return {"accuracy": tf.reduce_mean(tf.cast(hits, tf.float32))}
