"""A net with BatchNorm and dropout, on data made here. Gates and slow slices let it be disturbed."""

import os
import time

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))
SLOW = os.environ.get("SLOW", "")
"""A folder: a process whose number a file in it bears needs five times as long."""
MOST = int(os.environ.get("MOST_RECORDS", "0"))
"""A machine that has no memory for more at once."""
LR = 0.01


def model():
    pass_gate("model")
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(32, 3),
    )
    return {"net": net, "scale": torch.ones(3), "optimizer": ef.Adam(lr=LR)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return LR


def forward(x, y, params):
    if MOST and len(x) > MOST and torch.is_grad_enabled():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate too much")
    if SLICE_S and torch.is_grad_enabled():
        is_slow = SLOW and os.path.exists(f"{SLOW}/{os.getpid()}")
        time.sleep(SLICE_S * (5 if is_slow else 1))  # stands for a bigger model: the time a slice takes
    return torch.nn.functional.cross_entropy(params["net"](x) * params["scale"], y)


def metrics(x, y, params):
    return {"accuracy": (params["net"](x).argmax(1) == y).float().mean()}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1100, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    train, test = slice(0, 1000), slice(1000, None)
    return {"train": ef.data.Arrays(x=x[train], y=y[train]), "test": ef.data.Arrays(x=x[test], y=y[test])}
