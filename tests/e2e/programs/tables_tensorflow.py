"""``tables_torch.py`` in TensorFlow."""

import tensorflow as tf

import elasticflow as ef
from gates import pass_gate
from tables_data import PADDING, USERS, data  # noqa: F401  (data is the program's)


def model():
    net = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    return {
        "words": ef.Embedding(None, 8, initializer=ef.Normal(std=0.1), evict_after_steps=12),
        "users": ef.Embedding(USERS, 8),
        "places": ef.Embedding(None, 8, optimizer=ef.Ftrl(lr=0.1)),
        "net": net,
        "optimizer": ef.Adagrad(lr=0.05),
    }


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.05


def forward(words, user, place, y, params):
    bags = params["words"](words, combine="mean", padding=PADDING)
    rows = [bags, params["users"](user), params["places"](place)]
    losses = tf.keras.losses.sparse_categorical_crossentropy(
        y, params["net"](tf.concat(rows, axis=1)), from_logits=True
    )
    return tf.reduce_mean(losses)
