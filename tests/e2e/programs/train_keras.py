"""A plain script of Keras, as it is run by Python alone: nothing in it knows of ElasticFlow, but the gate."""

import keras
import numpy as np

from gates import pass_gate

EPOCHS = 3


def records():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((500, 6))
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


def rate(epoch, lr):
    pass_gate(f"epoch {epoch}")
    return lr * 0.9


def main():
    inputs = keras.Input((6,))
    inner = keras.layers.Dense(16, kernel_regularizer="l2")(inputs)
    inner = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(inner))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Activation("relu")(inner)))
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        keras.callbacks.LearningRateScheduler(rate),
        keras.callbacks.EarlyStopping(patience=5),
        keras.callbacks.ModelCheckpoint("unused.keras"),
    ]
    model.fit(
        *records(),
        batch_size=40,
        epochs=EPOCHS,
        validation_split=0.2,
        callbacks=callbacks,
        class_weight={1: 2.0},
    )
    print(model.evaluate(*records()))


if __name__ == "__main__":
    main()
