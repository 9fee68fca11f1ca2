"""A net with BatchNorm and dropout, whose slices take SLICE_S seconds more than they need."""

import time

import numpy as np
import torch
from soak_live import RECORDS, SLICE_S, TESTS

import elasticflow as ef


def model():
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(64, 3),
    )
    return {"net": net, "scale": torch.ones(3), "optimizer": ef.Adam(lr=0.01, clip_norm=1.0)}


def forward(x, y, params):
    if torch.is_grad_enabled():
        time.sleep(SLICE_S)  # stands for a bigger model: its arithmetic would need more than two cores
    return torch.nn.functional.cross_entropy(params["net"](x) * params["scale"], y)


def metrics(x, y, params):
    return {"accuracy": (params["net"](x).argmax(1) == y).float().mean()}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS + TESTS, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    train, test = slice(0, RECORDS), slice(RECORDS, None)
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}
