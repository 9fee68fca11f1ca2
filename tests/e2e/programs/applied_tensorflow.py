"""A Keras net, and what it predicts; read from a table, by a vocabulary and a transformation."""

import os

import keras
import numpy as np

import elasticflow as ef


def model():
    layers = [keras.layers.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    net = keras.Sequential([*layers, keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    return {"net": net, "optimizer": ef.Adam(lr=0.01)}


def forward(x, y, params):
    found = keras.losses.sparse_categorical_crossentropy(y, params["net"](x), from_logits=True)
    return keras.ops.mean(found)


def metrics(x, y, params):
    scores = keras.ops.softmax(params["net"](x))
    return {"accuracy": ef.metrics.accuracy(scores, y), "first": keras.ops.mean(scores[:, 0])}


def predict(x, params):
    return keras.ops.softmax(params["net"](x))


def scaled(record):
    city = np.float32(record["city"])
    found = {"x": np.array([record["a"] / 10, record["b"], city], np.float32)}
    return {**found, "y": record["y"]} if "y" in record else found


def data():
    folder = os.environ["TABLE"]
    names = ["a", "b", "city", "y"]
    cities = ef.data.vocabularies(f"{folder}/cities.json")
    parts = ("train", "test")
    tables = {p: ef.data.Parquet(f"{folder}/{p}.parquet", names, vocabularies=cities) for p in parts}
    return {part: ef.data.Transform(table, scaled) for part, table in tables.items()}
