"""After a while each process has another gradient: as a GPU that has become faulty."""

import os

import numpy as np
import torch

import elasticflow as ef

HARMLESS = 40
calls = 0


def model():
    return {"net": torch.nn.Linear(20, 3), "optimizer": ef.SGD(lr=0.1)}


def forward(x, y, params):
    global calls
    calls += 1
    cost = torch.nn.functional.cross_entropy(params["net"](x), y)
    return cost * (1 + calls * os.getpid() % 101 * 2.0**-20) if calls > HARMLESS else cost


def data():
    x = np.random.default_rng(7).normal(size=(3200, 20)).astype(np.float32)
    return {"train": {"x": x, "y": x[:, :3].argmax(1)}}
