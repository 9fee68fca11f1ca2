"""One variable of 6 MB, and beside it BatchNorm's."""

import keras
import numpy as np
import tensorflow as tf
from soak_live import RECORDS

import elasticflow as ef

WIDE = 3 << 14


def model():
    rng = np.random.default_rng(1)
    net = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(32)])
    huge = tf.Variable(rng.normal(size=(32, WIDE)).astype(np.float32))
    return {"net": net, "huge": huge, "optimizer": ef.SGD(lr=0.02, momentum=0.9)}


def forward(x, y, params):
    found = tf.reduce_mean(tf.tanh(tf.matmul(params["net"](x), params["huge"])), axis=1)
    return tf.reduce_mean(tf.square(found - y))


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS, 20)).astype(np.float32)
    return {"train": {"x": x, "y": np.sin(x).mean(1)}}
