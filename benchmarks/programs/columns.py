"""Tables, and a column of ids for each, looked up as it is or, with ``computed``, by ids made in forward().

The environment variable BENCH (JSON) says: tables, dim, records, and computed.
"""

import json
import os

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])
NAMES = [f"c{number}" for number in range(BENCH["tables"])]


def model():
    tables = {name: ef.Embedding(None, BENCH["dim"]) for name in NAMES}
    return {**tables, "scale": torch.ones(1), "optimizer": ef.SGD(lr=0.01)}


def forward(params, **columns):
    more = 1 if BENCH["computed"] else 0
    rows = [params[name](columns[name] + more if more else columns[name]) for name in NAMES]
    return (torch.cat(rows, dim=1) * params["scale"]).mean()


def data():
    random = np.random.default_rng(0)
    return {"train": ef.data.Arrays(**{n: random.zipf(1.2, BENCH["records"]) % 1_000_000 for n in NAMES})}
