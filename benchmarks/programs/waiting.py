"""Batches that take as long as their records say, without computing: workers are not in each other's way.

BENCH (JSON): record_s, seconds a record; records; slowness of the one process that gets hold of the file
``lock``.
"""

import fcntl
import json
import os
import time

import numpy as np
import torch

import elasticflow as ef

BENCH = json.loads(os.environ["BENCH"])
_lock = open(BENCH["lock"], "wb")
try:
    fcntl.flock(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    RECORD_S = BENCH["record_s"] * BENCH["slowness"]
except BlockingIOError:
    RECORD_S = BENCH["record_s"]


def model():
    return {"w": torch.zeros(64, 32), "optimizer": ef.SGD(lr=0.01)}


def forward(x, params):
    time.sleep(len(x) * RECORD_S)
    return (x @ params["w"]).square().mean() + params["w"].mean()


def data():
    return {"train": ef.data.Arrays(x=np.ones((BENCH["records"], 64), np.float32))}
