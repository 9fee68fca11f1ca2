"""Raises with a text made by WORDS ("torn", "huge", "unspeakable") at WHERE, or names a metric so."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

WHERE, WORDS = os.environ.get("WHERE", ""), os.environ.get("WORDS", "torn")
TEXTS = {"torn": "a file named \udcff\ud800", "huge": "begin " + "x" * (70 << 20) + " end"}


begun = {"step": 0}


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words for it")


def fail():
    if WORDS == "unspeakable":
        raise Unspeakable()
    raise ValueError(TEXTS[WORDS])


def model():
    if WHERE == "model":
        fail()
    return {"w": torch.ones(3), "optimizer": ef.SGD(lr=0.1)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    if WHERE == "learning_rate" and step == 8:
        fail()
    begun["step"] = step
    return 0.01


def forward(row, x, params):
    if WHERE == "forward" and torch.is_grad_enabled() and begun["step"] >= 7 and 57 in row.tolist():
        fail()
    return (x @ params["w"]).square().mean()


def metrics(x, params):
    name = "m\udcff" if WHERE == "metrics" else "m"
    return {name: (x @ params["w"]).mean()}


def data():
    x = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    records = {"row": np.arange(200), "x": x}
    return {"train": ef.data.Arrays(**records), "test": ef.data.Arrays(**records)}
