"""A net so small that what a step costs besides is all there is to see."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import elasticflow as ef


def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def model():
    return {"net": net(), "optimizer": ef.SGD(lr=0.1, momentum=0.9)}


def forward(x, y, params):
    return cross_entropy(params["net"](x), y)


def arrays():
    rng = np.random.default_rng(0)
    return {"x": rng.random((512, 64), np.float32), "y": rng.integers(0, 10, 512)}


def data():
    return {"train": ef.data.Arrays(**arrays())}


def optimizer(parameters):
    """The plain loop's."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
