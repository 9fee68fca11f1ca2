"""Actor-critic on CartPole: a record is an episode's seed, and a slice plays the episodes of its records."""

import numpy as np
import torch
from episodes import HELD_OUT, LR, SEEDS, ActorCritic, cost_of, length_of

import elasticflow as ef


def data():
    return {"train": {"seed": np.arange(SEEDS)}, "test": {"seed": np.arange(HELD_OUT, HELD_OUT + 8)}}


def model():
    return {"net": ActorCritic(), "optimizer": ef.Adam(lr=LR, clip_norm=1.0)}


def loop(session):
    net = session.params["net"]
    for step in session.steps():
        for part in step.slices():
            cost, length = cost_of(net, part.seed)
            cost.backward()
            step.push(net)
            step.cost(-torch.tensor(length))  # what is shown of a step


def forward(seed, params):
    return torch.tensor(-length_of(params["net"], seed))


def metrics(seed, params):
    return {"length": length_of(params["net"], seed)}
