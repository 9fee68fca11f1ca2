"""Records that Python makes, by chance: on one of them it raises."""

import os
import random

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

BAD = int(os.environ.get("BAD", "-1"))


def make(record):
    if record["number"] == BAD:
        raise ValueError(f"cannot make record {BAD}")
    noise = random.random() + np.random.normal(size=20)
    return {"x": (record["x"] + noise).astype(np.float32), "y": record["y"]}


def data():
    x = np.random.default_rng(7).normal(size=(1000, 20)).astype(np.float32)
    return ef.data.Transform({"x": x, "y": (x[:, 0] > 0).astype(np.int64), "number": np.arange(1000)}, make)


def model():
    return {"net": torch.nn.Linear(20, 2), "optimizer": ef.Adam(lr=0.01)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)
