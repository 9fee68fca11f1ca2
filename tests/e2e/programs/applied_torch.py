"""A net and a table, and what they predict. The first number of a record is its own, for gates and faults."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

KILLS, RAISES = int(os.environ.get("KILLS", "-1")), int(os.environ.get("RAISES", "-1"))
LACKS = int(os.environ.get("LACKS", "-1"))


def model():
    layers = [torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)]
    table = ef.Embedding(None, 2, initializer=ef.Normal(std=0.5))
    return {"net": torch.nn.Sequential(*layers), "words": table, "optimizer": ef.Adam(lr=0.01)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def logits(x, word, params):
    return params["net"](x / 1000) + params["words"](word)


def forward(x, word, y, params):
    return torch.nn.functional.cross_entropy(logits(x, word, params), y)


def metrics(x, word, y, params):
    scores = logits(x, word, params).softmax(1)
    auc = ef.metrics.auc(scores[:, 1], y)
    return {"accuracy": ef.metrics.accuracy(scores, y), "auc": auc, "first": scores[:, 0].mean()}


def predict(x, word, params):
    numbers = x[:, 0].to(torch.int64).tolist()
    pass_gate(f"record {numbers[0]}")
    if KILLS in numbers:
        os.kill(os.getpid(), 9)
    if RAISES in numbers:
        raise ValueError("a record that I do not like")
    if LACKS in numbers:
        raise MemoryError
    scores = logits(x, word, params).softmax(1)
    return {"score": scores, "best": scores.argmax(1)}


def records(seed, count):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32) * 1000
    x[:, 0] = np.arange(count)
    word = rng.integers(0, 60, count) * 1_000_003
    return {"x": x, "word": word, "y": (x[:, 1] + 500 * (word % 2) > 0).astype(np.int64)}


def data():
    return {"train": records(1, 640), "test": records(2, 500)}
