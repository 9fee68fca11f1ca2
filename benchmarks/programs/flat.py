"""Parameters and next to no computing: each gradient is full, and costs one pass to fill.

How many tensors, their size and the records come from the environment variable BENCH (JSON).
"""

import json
import os

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])


def model():
    tensors = {f"p{number}": torch.zeros(BENCH["elements"]) for number in range(BENCH["tensors"])}
    return {**tensors, "optimizer": ef.SGD(lr=0.01)}


def forward(x, params):
    return x.mean() * sum(params[f"p{number}"].sum() for number in range(BENCH["tensors"]))


def data():
    return {"train": ef.data.Arrays(x=np.ones((BENCH["records"], 1), np.float32))}
