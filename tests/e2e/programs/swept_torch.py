"""Some arguments to choose; gates, named after the width, let a trial be held. SPOILT: one width fails."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

args = ef.args(lr=0.1, width=4)
SPOILT = int(os.environ.get("SPOILT", "0"))


def model():
    if args.width == SPOILT:
        raise RuntimeError(f"no net has a width of {args.width}")
    net = torch.nn.Sequential(torch.nn.Linear(4, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 2))
    return {"net": net, "optimizer": ef.SGD(lr=args.lr)}


def data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(160, 4)).astype(np.float32)
    y = (x[:, 0] > x[:, 1] * x[:, 2]).astype(np.int64)
    return {"train": {"x": x[:120], "y": y[:120]}, "test": {"x": x[120:], "y": y[120:]}}


def learning_rate(step, epoch):
    pass_gate(f"width {args.width} step {step}")
    return args.lr


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    return {"right": (params["net"](x).argmax(1) == y).float().mean()}
