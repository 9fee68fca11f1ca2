"""A layer of 4 MB, followed by scalars, and BatchNorm's buffers."""

import numpy as np
import torch
from soak_live import RECORDS

import elasticflow as ef

WIDE, SCALARS = 1024, 24


def model():
    net = torch.nn.Sequential(
        torch.nn.Linear(20, WIDE),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDE, WIDE, bias=False),
        torch.nn.BatchNorm1d(WIDE),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDE, 3),
    )
    scalars = torch.nn.ParameterList([torch.tensor(1.0) for _ in range(SCALARS)])
    return {"net": net, "scalars": scalars, "optimizer": ef.SGD(lr=0.02, momentum=0.9, clip_norm=2.0)}


def forward(x, y, params):
    scale = torch.stack(list(params["scalars"])).mean()
    return torch.nn.functional.cross_entropy(params["net"](x) * scale, y)


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(RECORDS, 20)).astype(np.float32)
    return {"train": {"x": x, "y": (x @ rng.normal(size=(20, 3))).argmax(1)}}
