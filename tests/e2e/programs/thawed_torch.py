"""A body that is trained from the third epoch on, a table not in the second. Gates let it be disturbed."""

import os
import time

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))
WIDTH = int(os.environ.get("WIDTH", "64"))
THAWS = int(os.environ.get("THAWS", "2"))


def model():
    body = torch.nn.Sequential(torch.nn.Linear(24, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 32))
    head = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    adam = ef.AdamW(lr=0.01, clip_norm=1.0, ema=0.9)
    groups = {"body.0.*": ef.LAMB(lr=0.005), "*.bias": {"weight_decay": 0}}
    return {
        "body": body,
        "head": head,
        "table": ef.Embedding(50, 4, optimizer=ef.Adam(lr=0.01)),
        "optimizer": ef.Groups(adam, groups),
    }


keep_best = ef.keep_best("cost", mode="min")
"""So there is a checkpoint after each epoch."""


def trainable(epoch):
    head = ["head.*"] if epoch == 1 else ["head.*", "table"]
    return head if epoch < THAWS else [*head, "body.*"]


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(x, word, y, params):
    if SLICE_S and torch.is_grad_enabled():
        time.sleep(SLICE_S)
    seen = torch.cat([x, params["table"](word)], 1)
    return torch.nn.functional.cross_entropy(params["head"](params["body"](seen)), y)


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(320, 20)).astype(np.float32)
    columns = {"x": x, "word": rng.integers(0, 50, 320), "y": (x @ rng.normal(size=(20, 3))).argmax(1)}
    return {"train": columns, "test": {name: column[:64] for name, column in columns.items()}}
