"""It says itself, after each epoch, what comes next: it remembers, slows down, and has enough one day."""

import os

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate


def model():
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    return {"net": net, "optimizer": ef.Adam(lr=0.02)}


def forward(x, y, params):
    return torch.nn.functional.cross_entropy(params["net"](x), y)


def metrics(x, y, params):
    return {"accuracy": ef.metrics.accuracy(params["net"](x), y)}


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(320, 20)).astype(np.float32)
    y = (x @ rng.normal(size=(20, 3)) + 4 * rng.normal(size=(320, 3))).argmax(1)  # mostly noise
    return {"train": {"x": x[:256], "y": y[:256]}, "test": {"x": x[256:], "y": y[256:]}}


planned = ef.lr.warmup(5, ef.lr.cosine(0.02))


def learning_rate(step, epoch, steps):
    pass_gate(f"step {step}")
    return planned(step, epoch, steps)


def on_epoch(info):
    pass_gate(f"epoch {info.epoch}")
    if info.epoch == int(os.environ.get("RAISES", "-1")):
        raise KeyError("no such thing")
    if info.epoch == int(os.environ.get("DIFFERS", "-1")):
        return ef.go_on(lr=1 / os.getpid())
    costs = [*info.memory.get("costs", []), info.cost]
    if info.epoch >= 7:
        return ef.stop(f"accuracy {info.metrics['accuracy']:.3f} is enough")
    if info.epoch == 5:
        return ef.go_on(lr=2 * info.learning_rate, memory={"costs": costs})
    return ef.go_on(lr_scale=0.7 if info.cost > min(costs) else None, memory={"costs": costs})
