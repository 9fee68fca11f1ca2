"""Some records have a NaN (NAN: their rows). TABLE: with an embedding table. CLIP: gradients are clipped."""

import os

import keras
import numpy as np
import tensorflow as tf

import elasticflow as ef

ROWS = [int(row) for row in os.environ.get("NAN", "").split(",") if row]
CLIP = 0.5 if os.environ.get("CLIP") else None


def model():
    layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    table = {"table": ef.Embedding(40, 1)} if os.environ.get("TABLE") else {}
    return {"net": keras.Sequential(layers), **table, "optimizer": ef.SGD(lr=0.01, clip_norm=CLIP)}


def forward(row, x, y, params):
    found = tf.squeeze(params["net"](x), 1)
    if "table" in params:
        found += tf.squeeze(params["table"](row % 40), 1) * x[:, 0]
    return tf.reduce_mean(tf.square(found - y))


def data():
    x = np.random.default_rng(5).normal(size=(320, 6)).astype(np.float32)
    y = x.sum(1)
    x[ROWS, 2] = np.nan
    return {"row": np.arange(320), "x": x, "y": y}
