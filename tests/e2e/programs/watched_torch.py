"""Its evaluations decide how long it is trained, how fast, and what is kept. It learns too much."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate


def model():
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    return {"net": net, "optimizer": ef.Adam(lr=0.02)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    return {"accuracy": ef.metrics.accuracy(params["net"](x), y)}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(320, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3)) + 4 * rng.normal(size=(320, 3))).argmax(1)  # mostly noise
    return {"train": {"x": x[:256], "y": y[:256]}, "test": {"x": x[256:], "y": y[256:]}}


def rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.02


learning_rate = ef.lr.on_plateau(rate, "cost", patience=2, mode="min", factor=0.5)
early_stopping = ef.early_stopping("cost", patience=int(os.environ.get("PATIENCE", "5")), mode="min")
keep_best = ef.keep_best("accuracy", mode="max")
