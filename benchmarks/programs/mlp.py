"""A perceptron whose size, data and batch come from the environment variable BENCH (JSON)."""

import json
import os

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])
WIDTHS = BENCH["widths"]


def net():
    layers = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def model():
    return {"net": net(), "optimizer": ef.SGD(lr=0.01, momentum=0.9)}


def forward(x, y, params):
    return torch.nn.functional.mse_loss(params["net"](x), y)


def arrays():
    rng = np.random.default_rng(0)
    x = rng.random((BENCH["records"], WIDTHS[0]), dtype=np.float32) - np.float32(0.5)
    return x, np.ascontiguousarray(x[:, : WIDTHS[-1]])


def data():
    x, y = arrays()
    return {"train": ef.data.Arrays(x=x, y=y)}
