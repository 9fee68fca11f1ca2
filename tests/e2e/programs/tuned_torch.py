"""A backbone that is not trained, and a head that is, by several optimizers. Gates let it be disturbed."""

import os
import time

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

SLICE_S = float(os.environ.get("SLICE_S", "0"))
WIDTH = int(os.environ.get("WIDTH", "64"))
OTHER = "OTHER" in os.environ
"""The backbone comes from another file."""


def model():
    backbone = torch.nn.Sequential(torch.nn.Linear(20, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 32))
    backbone.requires_grad_(False)
    if OTHER:
        backbone[0].bias += 1
    head = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    adam = ef.AdamW(lr=0.01, clip_norm=1.0, ema=0.9)
    groups = {"head.2.*": ef.RMSprop(lr=0.02, momentum=0.9), "*.bias": {"weight_decay": 0}}
    return {"backbone": backbone, "head": head, "optimizer": ef.Groups(adam, groups)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(x, y, params):
    if SLICE_S and torch.is_grad_enabled():
        time.sleep(SLICE_S)
    return torch.nn.functional.cross_entropy(params["head"](params["backbone"](x)), y)


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1000, 20)).astype(np.float32)
    return ef.data.Arrays(x=x, y=(x @ rng.normal(size=(20, 3))).argmax(1))
