"""A loop of the program's own, in TensorFlow. HOW: "push" and "forward" are the same model; "own" has an
optimizer of its own, and two rounds.
"""

import os
import time

import numpy as np
import tensorflow as tf

import elasticflow as ef
from gates import pass_gate

HOW = os.environ.get("HOW", "push")
SLICE_S = float(os.environ.get("SLICE_S", "0"))
cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((480, 6)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(np.int64)}


def model():
    layers = tf.keras.layers
    net = tf.keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(2),
        ]
    )
    if HOW == "own":
        return {"net": net, "scale": tf.Variable(1.0), "optimizer": ef.SGD(lr=0.1)}
    return {"net": net, "optimizer": ef.Adam(lr=0.01)}


def wait():
    if SLICE_S:
        time.sleep(SLICE_S)


if HOW == "forward":

    def forward(x, y, params):
        return cross_entropy(y, params["net"](x))

else:

    def loop(session):
        (own if HOW == "own" else pushed)(session)


def pushed(session):
    net = session.params["net"]
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait()
            with tf.GradientTape() as tape:
                loss = cross_entropy(part.y, net(part.x, training=True))
            step.cost(loss)
            step.push(net, tape.gradient(loss, net.trainable_variables))


def own(session):
    net, scale = session.params["net"], session.params["scale"]
    optimizer = tf.keras.optimizers.Adam(0.01)
    mean = tf.Variable(0.0, trainable=False)
    session.keep(net=net, optimizer=optimizer, mean=mean)
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait()
            with tf.GradientTape() as tape:
                loss = cross_entropy(part.y, net(part.x, training=True) * scale)
            for number, gradient in enumerate(tape.gradient(loss, net.trainable_variables)):
                step.all_reduce(f"gradient {number}", gradient, "mean")
            step.all_reduce("loss", loss, "mean")
        variables = net.trainable_variables
        gradients = [step.total(f"gradient {number}") for number in range(len(variables))]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        mean.assign(0.9 * mean + 0.1 * step.total("loss"))
        for part in step.slices():
            with tf.GradientTape() as tape:
                loss = cross_entropy(part.y, net(part.x) * scale)
            step.cost(loss)
            step.push(scale, tape.gradient(loss, scale))
