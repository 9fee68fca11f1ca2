"""Its parameters count the records: each record takes 1 from its own parameter, once an epoch."""

import time

import numpy as np
import tensorflow as tf
from soak_live import RECORDS, SLICE_S

import elasticflow as ef

BATCH = 64.0
"""The cost is the mean over a batch of so many, a power of two: no sum here is ever rounded."""


def model():
    return {"seen": tf.Variable(tf.zeros(RECORDS)), "optimizer": ef.SGD(lr=BATCH)}


def forward(row, params):
    tf.py_function(lambda: time.sleep(SLICE_S), [], [])
    return tf.reduce_mean(tf.gather(params["seen"], row))


def data():
    return ef.data.Arrays(row=np.arange(RECORDS))
