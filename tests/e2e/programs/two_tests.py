"""What is trained is tested with two sources of different sizes, one of which ends the run."""

import numpy as np
import torch

import elasticflow as ef


def model():
    return {"net": torch.nn.Linear(6, 3), "optimizer": ef.SGD(lr=0.1)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    scores = params["net"](x)
    return {
        "accuracy": ef.metrics.accuracy(scores, y),
        "size": scores.abs().mean(),
        "auc": ef.metrics.auc(scores[:, 0], y == 0, low=-9, high=9),
    }


def made(count, seed, noise):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    y = (x[:, :3] + noise * rng.normal(size=(count, 3))).argmax(1)
    return {"x": x, "y": y}


TESTS = {"clean": made(37, 1, 0.1), "noisy": made(90, 2, 3.0)}


def data():
    return {"train": made(128, 0, 0.5), "test": TESTS}


early_stopping = ef.early_stopping("noisy/accuracy", patience=3, mode="max")
