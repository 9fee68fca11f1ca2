"""``tables_torch.py`` in TensorFlow."""

import tensorflow as tf
from lookups import PADDING, USERS, columns

import elasticflow as ef


def model():
    net = tf.keras.Sequential(
        [tf.keras.layers.Dense(32), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
    )
    return {
        "words": ef.Embedding(None, 8, initializer=ef.Normal(std=0.1), evict_after_steps=12),
        "users": ef.Embedding(USERS, 8, optimizer=ef.Ftrl(lr=0.1)),
        "net": net,
        "optimizer": ef.Adagrad(lr=0.05),
    }


def forward(words, user, y, params):
    rows = [params["words"](words, combine="mean", padding=PADDING), params["users"](user)]
    losses = tf.keras.losses.sparse_categorical_crossentropy(
        y, params["net"](tf.concat(rows, axis=1)), from_logits=True
    )
    return tf.reduce_mean(losses)


def data():
    return {"train": ef.data.Arrays(**columns())}
