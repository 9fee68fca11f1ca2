"""Does a household move within the year? A functional Keras model, and preprocessing. See README.md."""

import keras
import numpy as np
from keras import layers

import elasticflow as ef

EPOCHS, BATCH, LR = 4, 256, 3e-3
REGIONS, AGES = 12, [25, 35, 45, 60]


def households():
    """By "train" and "test": columns by name, as they are counted and paid, and who moved."""
    rng = np.random.default_rng(1)
    count = 25_000
    age, region = rng.integers(18, 90, count), rng.integers(0, REGIONS, count)
    income, rent = rng.lognormal(10.3, 0.5, count), rng.lognormal(6.8, 0.4, count)
    of_region = rng.normal(size=REGIONS)
    odds = of_region[region] - np.abs(age - 30) / 12 + 40 * np.minimum(rent / income, 0.1) + 0.5
    moved = rng.random(count) < 1 / (1 + np.exp(-odds))
    columns = {
        "age": age.astype(np.float32),
        "region": region.astype(np.int32),
        "income": income.astype(np.float32),
        "rent": rent.astype(np.float32),
        "moved": moved.astype(np.float32),
    }
    return {
        "train": {name: column[:20_000] for name, column in columns.items()},
        "test": {name: column[20_000:] for name, column in columns.items()},
    }


def compiled():
    """The model, with what it learns of the training data beforehand: means and variances."""
    train = households()["train"]
    age, region, income, rent = (
        keras.Input((1,), name=name, dtype="int32" if name == "region" else "float32")
        for name in ("age", "region", "income", "rent")
    )
    amounts = layers.Normalization(axis=-1)
    amounts.adapt(np.log(np.stack([train["income"], train["rent"]], axis=1)))
    parts = [
        layers.CategoryEncoding(len(AGES) + 1, output_mode="one_hot")(layers.Discretization(AGES)(age)),
        layers.Flatten()(layers.Embedding(REGIONS, 4)(region)),
        amounts(layers.Concatenate()([keras.ops.log(income), keras.ops.log(rent)])),
    ]
    inner = layers.Concatenate()(parts)
    for _ in range(2):
        inner = layers.Dropout(0.1)(
            layers.Dense(96, "relu", kernel_regularizer=keras.regularizers.L2(1e-5))(inner)
        )
    net = keras.Model([age, region, income, rent], layers.Dense(1, "sigmoid")(inner))
    net.compile(
        keras.optimizers.AdamW(LR, weight_decay=1e-3),
        keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.AUC(name="auc"), keras.metrics.BinaryAccuracy(name="accuracy")],
    )
    return net


def data():
    return households()


def model():
    net = compiled()
    return {"net": net, "optimizer": net.optimizer}


def forward(age, region, income, rent, moved, params):
    net = params["net"]
    x = [column[:, None] for column in (age, region, income, rent)]
    # The compiled cost, and what regularizers add to it.
    return net.compute_loss(x, moved[:, None], net(x))


def metrics(age, region, income, rent, moved, params):
    chances = params["net"]([column[:, None] for column in (age, region, income, rent)])
    return {"auc": ef.metrics.auc(chances, moved), "accuracy": ef.metrics.accuracy(chances[:, 0], moved)}
