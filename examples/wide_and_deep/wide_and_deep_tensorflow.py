"""Will it be clicked? A wide and deep model with Keras layers. See README.md."""

import clicks
import keras
import tensorflow as tf
from keras.layers import Dense

import elasticflow as ef

data = clicks.data


def model():
    first, second = clicks.LAYERS
    return {
        "wide": ef.Embedding(None, 1, **clicks.WIDE),
        "deep": ef.Embedding(None, clicks.DIM, **clicks.DEEP),
        "net": keras.Sequential([Dense(first, "relu"), Dense(second, "relu"), Dense(1)]),
        "optimizer": clicks.OPTIMIZER,
    }


def log_odds(x, ids, interests, crosses, params):
    # What is looked up comes from the parameter servers: only the rows of these records.
    wide = params["wide"](crosses, combine="sum", padding=clicks.PADDING)
    columns = tf.reshape(params["deep"](ids), (-1, clicks.NUM_COLUMNS * clicks.DIM))
    tastes = params["deep"](interests, combine="mean", padding=clicks.PADDING)
    deep = params["net"](tf.concat([x, columns, tastes], axis=1))
    return tf.squeeze(wide + deep, axis=1)


def forward(x, ids, interests, crosses, y, params):
    scores = log_odds(x, ids, interests, crosses, params)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=scores))


def metrics(x, ids, interests, crosses, y, params):
    # Called with some records of "test" at a time; the mean of what it returns is reported.
    scores = log_odds(x, ids, interests, crosses, params)
    hits = (scores > 0) == (y > 0)
    return {"accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)), "auc": auc(scores, y)}


def auc(scores, y):
    """The share of pairs, one clicked and one not, in which the clicked one scores higher."""
    clicked, others = tf.boolean_mask(scores, y > 0), tf.boolean_mask(scores, y == 0)
    pairs = tf.cast(clicked[:, None] > others, tf.float32)
    return tf.where(tf.size(pairs) > 0, tf.reduce_mean(pairs), 0.5)
