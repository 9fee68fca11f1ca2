"""Its parameters count the records: each record takes 1 from its own parameter, once an epoch."""

import time

import numpy as np
import torch
from soak_live import RECORDS, SLICE_S

import elasticflow as ef

BATCH = 64.0
"""The cost is the mean over a batch of so many, a power of two: no sum here is ever rounded."""


def model():
    return {"seen": torch.zeros(RECORDS), "optimizer": ef.SGD(lr=BATCH)}


def forward(row, params):
    time.sleep(SLICE_S)
    return params["seen"][row].mean()


def data():
    return ef.data.Arrays(row=np.arange(RECORDS))
