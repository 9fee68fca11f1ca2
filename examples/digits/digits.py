"""Handwritten digits, 8 by 8 pixels each: the whole program. See README.md."""

import numpy as np
import torch
from sklearn.datasets import load_digits

import elasticflow as ef


def data():
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))  # the same in every process
    test, train = np.split(order, [len(x) // 5])
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}


def model():
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    return {"net": net, "optimizer": ef.SGD(lr=0.2, momentum=0.9)}


def forward(x, y, params):
    # The cost of a few records. Gradients follow from it; there is no loop to write.
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    # Called with records of "test", with layers in their inference mode.
    return {"accuracy": (params["net"](x).argmax(dim=1) == y).float().mean()}
