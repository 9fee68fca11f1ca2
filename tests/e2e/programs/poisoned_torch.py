"""Some records have a NaN (NAN: their rows). TABLE: with an embedding table. CLIP: gradients are clipped."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

ROWS = [int(row) for row in os.environ.get("NAN", "").split(",") if row]
CLIP = 0.5 if os.environ.get("CLIP") else None


def model():
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    table = {"table": ef.Embedding(40, 1)} if os.environ.get("TABLE") else {}
    mask = torch.tensor([0.0, float("-inf")])  # stays as it is
    return {"net": net, **table, "mask": mask, "optimizer": ef.Adam(lr=0.01, clip_norm=CLIP)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(row, x, y, params):
    found = params["net"](x).squeeze(1) + params["mask"].exp()[1]
    if "table" in params:
        found = found + params["table"](row % 40).squeeze(1) * x[:, 0]
    return (found - y).square().mean()


def data():
    x = np.random.default_rng(5).normal(size=(320, 6)).astype(np.float32)
    y = x.sum(1)
    x[ROWS, 2] = np.nan
    return {"row": np.arange(320), "x": x, "y": y}
