"""TensorFlow's GradientTape; gradients are averaged by all_reduce, Keras's optimizer makes the update."""

import tensorflow as tf
from parts import LR, digits
from push_tensorflow import cost_of, forward, metrics  # noqa: F401  (of evaluations)


def data():
    return digits()


def model():
    layers = tf.keras.layers
    net = tf.keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    return {"net": net}


def loop(session):
    net = session.params["net"]
    variables = net.trainable_variables
    optimizer = tf.keras.optimizers.SGD(LR)
    session.keep(net=net, optimizer=optimizer)
    for step in session.steps():
        for part in step.slices():
            with tf.GradientTape() as tape:
                loss = cost_of(net, part.x, part.y)
            step.cost(loss)
            for number, gradient in enumerate(tape.gradient(loss, variables)):
                step.all_reduce(f"gradient {number}", gradient, "mean")
        gradients = [step.total(f"gradient {number}") for number in range(len(variables))]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
