"""Clipping by the global norm, a learning rate of the program's own, float64, no module, no test source."""

import numpy as np
import torch

import elasticflow as ef


def model():
    rng = np.random.default_rng(1)
    weights = torch.from_numpy(rng.normal(size=(30, 4)))
    return {"weights": weights, "bias": torch.zeros(4), "optimizer": ef.SGD(momentum=0.9, clip_norm=0.7)}


def learning_rate(step, epoch):
    return 0.1 / (1 + step / 50) * 0.5**epoch


def forward(x, y, params):
    return ((x @ params["weights"] + params["bias"] - y) ** 2).mean()


def data():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(203, 30))
    return {"x": x, "y": x[:, :4] * 3}
