"""A convolution net with BatchNorm: arrays of megabytes and, beside them in one message, of some bytes."""

import numpy as np
import torch

import elasticflow as ef

RECORDS, CHANNELS = 512, 160


def model():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, CHANNELS, 3, stride=4),
        torch.nn.BatchNorm2d(CHANNELS),
        torch.nn.ReLU(),
        torch.nn.Conv2d(CHANNELS, 4 * CHANNELS, 2),
        torch.nn.BatchNorm2d(4 * CHANNELS),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * CHANNELS, 3),
    )
    return {"net": net, "scale": torch.ones(3), "optimizer": ef.SGD(lr=0.02, momentum=0.9)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x) * params["scale"], y)


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS, 1, 8, 8)).astype(np.float32)
    return {"train": ef.data.Arrays(x=x, y=(x.reshape(RECORDS, -1) @ rng.normal(size=(64, 3))).argmax(1))}
