"""Its parameters count the records: each record takes 1 from its own, once an epoch, in whatever update.

Sums of ones are exact, so the order of updates does not show, but one that is missing or made twice does.
"""

import os
import time

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))
RECORDS = 203
WIDE = int(os.environ.get("WIDE", "1"))
"""Counters of each record: so many make parcels of several servers."""
TABLE = "TABLE" in os.environ
"""Counts in rows of a table as well."""
LOOP = "LOOP" in os.environ
"""Counts by a loop of its own."""


def model():
    values = {"seen": torch.zeros(RECORDS, WIDE), "optimizer": ef.SGD(lr=1.0)}
    if TABLE:
        values["rows"] = ef.Embedding(None, 2, initializer=ef.Constant(0.0))
    return values


def cost(row, params):
    if SLICE_S:
        time.sleep(SLICE_S)
    cost = params["seen"][row].sum()
    return cost + params["rows"](row).sum() if TABLE else cost


if LOOP:

    def loop(session):
        seen = session.params["seen"]
        for step in session.steps():
            for part in step.slices():
                cost(part.row, session.params).backward()
                step.push(seen)

else:

    def forward(row, params):
        return cost(row, params)


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 1.0


def data():
    return ef.data.Arrays(row=np.arange(RECORDS))
