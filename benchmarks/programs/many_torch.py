"""A thousand tiny tensors, of one to seven numbers each."""

import numpy as np
import torch
from soak_live import RECORDS

import elasticflow as ef

TENSORS = 1000


def model():
    rng = np.random.default_rng(1)
    tiny = [torch.from_numpy(rng.normal(size=1 + n % 7).astype(np.float32)) for n in range(TENSORS)]
    return {"tiny": torch.nn.ParameterList(tiny), "optimizer": ef.Adam(lr=0.01)}


def forward(x, y, params):
    flat = torch.cat(list(params["tiny"]))
    weights = flat[: len(flat) // 20 * 20].reshape(-1, 20)
    return (torch.tanh(x @ weights.T).mean(1) - y).square().mean()


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS, 20)).astype(np.float32)
    return {"train": {"x": x, "y": np.sin(x).mean(1)}}
