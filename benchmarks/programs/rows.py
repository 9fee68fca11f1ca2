"""A table that is filled with rows, and then looked up and trained by ids of a zipf distribution.

The environment variable BENCH (JSON) says: rows, dim, fill (rows a step until there are so many), ids (of a
lookup), records, and a file for the seconds that lookups of the latter kind took.
"""

import atexit
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])
FILL_STEPS = BENCH["rows"] // BENCH["fill"]
STEP = [0]
SECONDS = []


def model():
    return {"rows": ef.Embedding(None, BENCH["dim"]), "scale": torch.ones(1), "optimizer": ef.SGD(lr=0.01)}


def learning_rate(step, epoch):
    STEP[0] = step
    return 0.01


def ids_of(step):
    if step < FILL_STEPS:
        return torch.arange(step * BENCH["fill"], (step + 1) * BENCH["fill"])
    drawn = np.random.default_rng(step).zipf(BENCH["zipf"], BENCH["ids"])
    return torch.from_numpy(drawn % BENCH["rows"])


def forward(x, params):
    ids = ids_of(STEP[0])
    since_s = time.perf_counter()
    rows = params["rows"](ids)
    if STEP[0] >= FILL_STEPS:
        SECONDS.append(time.perf_counter() - since_s)
    return x.mean() * (rows * params["scale"]).sum()


def data():
    return {"train": ef.data.Arrays(x=np.ones((BENCH["records"], 1), np.float32))}


atexit.register(lambda: Path(BENCH["file"]).write_text(json.dumps(SECONDS)))
