"""A table that is filled with rows, and then looked up and trained by ids of a zipf distribution.

The environment variable BENCH (JSON) says: rows, dim, fill (rows a step until there are so many), ids (of a
lookup), records, and a file for the seconds that lookups of the latter kind took.
"""

import json
import os
import time

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])
FILL_STEPS = BENCH["rows"] // BENCH["fill"]
STEP = [0]
SECONDS = open(BENCH["file"], "a", encoding="utf-8")


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
    took_s = time.perf_counter() - since_s
    if STEP[0] >= FILL_STEPS:
        print(took_s, file=SECONDS, flush=True)
    return x.mean() * (rows * params["scale"]).mean()


def data():
    return {"train": ef.data.Arrays(x=np.ones((BENCH["records"], 1), np.float32))}
