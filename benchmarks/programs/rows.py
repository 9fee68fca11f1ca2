"""A table that is filled with rows, and then looked up and trained by ids of a zipf distribution.

The environment variable BENCH (JSON) says: rows, dim, fill (rows a step until there are so many), ids (of a
lookup), records, whether the ids are computed in forward(), and a file for the seconds that lookups took.
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


def forward(ids, params):
    first, ids = STEP[0] * BENCH["fill"], ids.reshape(-1)
    if BENCH["computed"]:
        ids = (ids + 1) % BENCH["rows"]
    since_s = time.perf_counter()
    rows = params["rows"](ids)
    took_s = time.perf_counter() - since_s
    cost = (rows * params["scale"]).mean()
    if STEP[0] < FILL_STEPS:
        cost = cost + params["rows"](torch.arange(first, first + BENCH["fill"])).mean()
    else:
        print(took_s, file=SECONDS, flush=True)
    return cost


def data():
    drawn = np.random.default_rng(0).zipf(BENCH["zipf"], (BENCH["records"], BENCH["ids"]))
    return {"train": ef.data.Arrays(ids=drawn % BENCH["rows"])}
