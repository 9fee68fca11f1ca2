"""Few records of one class, and metrics that no mean over slices gives. The same in TensorFlow."""

import os
import time

import elasticflow as ef
from gates import pass_gate
from measured_data import records

SLICE_S = float(os.environ.get("SLICE_S", "0"))
OF_TENSORFLOW = "OF_TENSORFLOW" in os.environ

if OF_TENSORFLOW:
    import tensorflow as tf
else:
    import torch
    import torchmetrics

OBJECTS = {}
"""Of Keras, once the model is made: nothing may be computed before."""


def model():
    if OF_TENSORFLOW:
        OBJECTS["curve"] = tf.keras.metrics.AUC(from_logits=True, num_thresholds=1000)
        return {"w": tf.zeros((8,)), "optimizer": ef.SGD(lr=0.5)}
    return {"w": torch.zeros(8), "optimizer": ef.SGD(lr=0.5)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.5


def scores(x, params):
    if OF_TENSORFLOW:
        return tf.linalg.matvec(x, params["w"])
    return x @ params["w"]


def forward(x, y, params):
    if SLICE_S:
        time.sleep(SLICE_S)
    if OF_TENSORFLOW:
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, scores(x, params)))
    return torch.nn.functional.binary_cross_entropy_with_logits(scores(x, params), y)


def metrics(x, y, params):
    found = scores(x, params)
    positive = tf.cast(y > 0, tf.float32) if OF_TENSORFLOW else (y > 0).float()
    squares = positive * 0 + found**2
    if OF_TENSORFLOW:
        OBJECTS["curve"].update_state(y, found)
    else:
        OBJECTS["curve"] = torchmetrics.AUROC(task="binary")
        OBJECTS["curve"].update(found.sigmoid(), positive.long())
    return {
        "auc": ef.metrics.auc(found, y),
        "recall": ef.metrics.recall(found, y),
        "plain": tf.reduce_mean(squares) if OF_TENSORFLOW else squares.mean(),
        "same": ef.metrics.mean(squares),
        **OBJECTS,
    }


def data():
    return {part: ef.data.Arrays(**columns) for part, columns in records().items()}
