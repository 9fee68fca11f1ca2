"""Small PyTorch programs."""

from __future__ import annotations

import random

import numpy as np
import torch
from replicas import program
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from elasticflow import Constant, Embedding, Normal


def accuracy(x, y, params):
    return {"accuracy": (params["net"](x).argmax(1) == y).float().mean()}


def net_forward(x, y, params):
    return cross_entropy(params["net"](x), y)


def mlp():
    return {"net": nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))}


def norm():
    return {
        "net": nn.Sequential(
            nn.Unflatten(1, (1, 8)),
            nn.Conv1d(1, 6, 3),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(36, 4),
        )
    }


def bare():
    return {
        "weight": torch.randn(8, 4) / 8,
        "bias": torch.zeros(4),
        "columns": torch.tensor([7, 2, 1, 0, 3, 4, 5, 6]),
    }


def bare_forward(x, y, params):
    return cross_entropy(x[:, params["columns"]] @ params["weight"] + params["bias"], y)


class Attention(nn.Module):
    """Has a mask with infinite numbers, and an embedding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), -torch.inf), 1))

    def forward(self, x):
        keys = self.table(torch.arange(8))
        scores = (keys @ keys.T + self.mask).softmax(1)
        return x @ scores @ keys


def attention():
    return {"net": Attention()}


def noisy_forward(x, y, params):
    noise = torch.rand(len(x), 1) + random.random() + np.random.rand()
    return cross_entropy(params["net"](dropout(x, 0.3) + noise), y)


class Towers(nn.Module):
    """Has tables beside its layers, one of them in a list."""

    def __init__(self):
        super().__init__()
        self.users = Embedding(None, 6, initializer=Normal(std=0.5))
        self.others = [Embedding(8, 4, initializer=Constant(0.25))]
        self.norm = nn.BatchNorm1d(10)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        ids = (3 * x).long()
        bags = self.users(ids, combine="mean", padding=0)
        twice = self.users(ids[:, :2]).sum(1)
        single = self.others[0](ids[:, 0] % 8)
        return self.head(dropout(self.norm(torch.cat([bags + twice, single], 1)), 0.2, self.training))


def towers():
    return {"net": Towers()}


def tables_alone():
    return {"table": Embedding(None, 4)}


def tables_alone_forward(x, y, params):
    return cross_entropy(params["table"]((4 * x).int(), combine="sum"), y)


PROGRAMS = {
    "mlp": program(mlp, net_forward, accuracy),
    "norm": program(norm, net_forward, accuracy),
    "bare": program(bare, bare_forward),
    "attention": program(attention, net_forward),
    "noisy": program(mlp, noisy_forward),
    "towers": program(towers, net_forward, accuracy),
    "tables alone": program(tables_alone, tables_alone_forward),
}
