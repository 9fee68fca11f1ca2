"""Two tables with rules of their own, and a net with BatchNorm above them."""

import torch
from lookups import PADDING, USERS, columns

import elasticflow as ef


def model():
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 2))
    return {
        "words": ef.Embedding(None, 8, initializer=ef.Normal(std=0.1), min_count=2, evict_after_steps=12),
        "users": ef.Embedding(USERS, 8, optimizer=ef.SGD(lr=0.05, momentum=0.9)),
        "net": net,
        "optimizer": ef.Adam(lr=0.01, clip_norm=2.0),
    }


def forward(words, user, y, params):
    rows = [params["words"](words, combine="mean", padding=PADDING), params["users"](user)]
    return torch.nn.functional.cross_entropy(params["net"](torch.cat(rows, dim=1)), y)


def data():
    return {"train": ef.data.Arrays(**columns())}
