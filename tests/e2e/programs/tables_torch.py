"""Three tables, each with rules of its own, and a net above them. Gates before each step, and in a slice."""

import os
import time

import torch

import elasticflow as ef
from gates import pass_gate
from tables_data import PADDING, USERS, data  # noqa: F401  (data is the program's)

SLICE_S = float(os.environ.get("SLICE_S", "0"))
STEP = [0]


def model():
    net = torch.nn.Sequential(torch.nn.Linear(3 * 8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return {
        "words": ef.Embedding(None, 8, initializer=ef.Normal(std=0.1), min_count=2, evict_after_steps=12),
        "users": ef.Embedding(USERS, 8, optimizer=ef.SGD(lr=0.05, momentum=0.9)),
        "places": ef.Embedding(None, 8, optimizer=ef.Ftrl(lr=0.1, l1=0.001)),
        "net": net,
        "optimizer": ef.Adam(lr=0.01, clip_norm=2.0),
    }


def learning_rate(step, epoch):
    STEP[0] = step
    pass_gate(f"step {step}")
    return 0.01


def logits(words, user, place, params):
    rows = params["words"](words, combine="mean", padding=PADDING)
    pass_gate(f"slice {STEP[0]}")
    return params["net"](torch.cat([rows, params["users"](user), params["places"](place)], dim=1))


def forward(words, user, place, y, params):
    if SLICE_S and torch.is_grad_enabled():
        time.sleep(SLICE_S)  # stands for a bigger model: the time a slice takes
    return torch.nn.functional.cross_entropy(logits(words, user, place, params), y)


def metrics(words, user, place, y, params):
    return {"accuracy": (logits(words, user, place, params).argmax(1) == y).float().mean()}
