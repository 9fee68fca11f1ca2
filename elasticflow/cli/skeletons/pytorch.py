"""A program of ElasticFlow's: what is trained, on what, and what it costs. No loop, no ranks."""

import numpy as np
import torch

import elasticflow as ef

ARGS = ef.args(lr=0.01, width=32)
"""Of the command line: elasticflow train program.py --set lr=0.1"""


def model():
    """All that is trained, by name, and one optimizer (ef.Adam, ... or torch.optim's)."""
    net = torch.nn.Sequential(torch.nn.Linear(4, ARGS.width), torch.nn.ReLU(), torch.nn.Linear(ARGS.width, 2))
    return {"net": net, "optimizer": ef.Adam(lr=ARGS.lr)}


def forward(x, y, params):
    """The cost of some records: their mean. Its arguments are the columns of the data."""
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    """Means over the test source, shown after each epoch. May be left out."""
    return {"accuracy": (params["net"](x).argmax(1) == y).float().mean()}


def predict(x, params):
    """What 'elasticflow predict RUN --data FILE --out FILE', and exports, compute. May be left out."""
    return torch.softmax(params["net"](x), dim=1)


def data():
    """Records to train on, and to test with; see docs/data.md for files, texts and datasets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    return {"train": {"x": x[:1600], "y": y[:1600]}, "test": {"x": x[1600:], "y": y[1600:]}}
