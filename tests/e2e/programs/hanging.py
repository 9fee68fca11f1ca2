"""Hangs at WHERE, by HOW: in a lock (Python), in C, or in C with Python's lock held.

HANG is a file: while it is there, whoever comes to the place hangs; with ONCE, one process alone does.
"""

import ctypes
import os
import threading

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

WHERE, HOW = os.environ.get("WHERE", "forward"), os.environ.get("HOW", "lock")
HANG, ONCE = os.environ["HANG"], bool(os.environ.get("ONCE"))


def hang():
    if ONCE:
        try:
            os.unlink(HANG)
        except FileNotFoundError:
            return
    elif not os.path.exists(HANG):
        return
    if HOW == "lock":
        threading.Lock().acquire() and threading.Event().wait()
    elif HOW == "C":
        while True:
            ctypes.CDLL(None).sleep(1000)
    else:
        while True:
            ctypes.PyDLL(None).sleep(1000)  # holds Python's lock: no thread of this process runs any more


def model():
    if WHERE == "model":
        hang()
    return {"w": torch.ones(3), "optimizer": ef.SGD(lr=0.1, momentum=0.9)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(x, params):
    if WHERE == "forward" and torch.is_grad_enabled():
        hang()
    return (x @ params["w"]).square().mean()


def metrics(x, params):
    if WHERE == "metrics":
        hang()
    return {"mean": (x @ params["w"]).mean()}


def data():
    x = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    return {"train": ef.data.Arrays(x=x), "test": ef.data.Arrays(x=x[:50])}
