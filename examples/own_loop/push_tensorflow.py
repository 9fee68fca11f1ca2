"""TensorFlow's GradientTape; gradients are pushed. The servers make the update."""

import tensorflow as tf
from parts import LR, digits

import elasticflow as ef

cross_entropy = tf.keras.losses.sparse_categorical_crossentropy


def data():
    return digits()


def model():
    layers = tf.keras.layers
    net = tf.keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    return {"net": net, "optimizer": ef.SGD(lr=LR)}


def cost_of(net, x, y):
    return tf.reduce_mean(cross_entropy(y, net(x), from_logits=True))


def loop(session):
    net = session.params["net"]
    for step in session.steps():
        for part in step.slices():
            with tf.GradientTape() as tape:
                loss = cost_of(net, part.x, part.y)
            step.cost(loss)
            step.push(net, tape.gradient(loss, net.trainable_variables))


def forward(x, y, params):  # of evaluations
    return cost_of(params["net"], x, y)


def metrics(x, y, params):
    right = tf.equal(tf.argmax(params["net"](x), 1), y)
    return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}
