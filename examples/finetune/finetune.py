"""A net that knows the digits 0 to 4 learns 5 to 9 from few examples. See README.md."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import elasticflow as ef

BACKBONE = Path(__file__).parent / "data" / "backbone.pt"
EPOCHS, BATCH, LR, LR_BODY = 30, 64, 3e-3, 3e-4
THAWS = {"6": 5, "2": 15}
"""From which epoch on, counted from 0, the backbone's last layers learn too, slowly; the first never does."""


def backbone():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 64),
        torch.nn.ReLU(),
    )


def digits(labels):
    images, y = load_digits(return_X_y=True)
    there = np.isin(y, list(labels))
    x = (images[there] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return x, y[there].astype(np.int64) - min(labels)


def data():
    x, y = digits(range(5, 10))
    order = np.random.default_rng(0).permutation(len(x))  # the same in every process
    train, test = order[:320], order[320:]
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}


def prepared():
    """The backbone as it was trained, its first layer frozen for good, and a new head."""
    body = backbone()
    body.load_state_dict(torch.load(BACKBONE))
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(name.split(".")[0] in THAWS)
    return body, torch.nn.Linear(64, 5)


def model():
    body, head = prepared()
    optimizer = ef.Groups(ef.AdamW(lr=LR), {"body.*": {"lr": LR_BODY}})
    return {"body": body, "head": head, "optimizer": optimizer}


def trainable(epoch):
    return ["head.*", *(f"body.{layer}.*" for layer, since in THAWS.items() if epoch >= since)]


def forward(x, y, params):
    return F.cross_entropy(params["head"](params["body"](x)), y)


def metrics(x, y, params):
    return {"accuracy": ef.metrics.accuracy(params["head"](params["body"](x)), y)}
