"""Retrieval with two towers: every other item of the whole batch is a negative. See README.md."""

import numpy as np
import torch
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH, LR = 6, 512, 2e-3
WIDTH, TOPICS = 32, 24


def data():
    random = np.random.default_rng(0)
    ask, show = (random.normal(size=(TOPICS, WIDTH)) for _ in range(2))
    num = 10_240
    topics = random.normal(size=(num, TOPICS)) * (random.random((num, TOPICS)) < 0.3)
    query = np.tanh(topics @ ask / 3) + 0.3 * random.normal(size=(num, WIDTH))
    item = np.tanh(topics @ show / 3) + 0.3 * random.normal(size=(num, WIDTH))
    # An item that is a little like the right one, for the test.
    other = np.roll(item, 1, axis=0) * 0.5 + item * 0.5 + 0.3 * random.normal(size=(num, WIDTH))
    columns = {"query": query, "item": item, "other": other}
    train, test = slice(0, 8_192), slice(8_192, None)
    return {
        "train": {name: column[train].astype(np.float32) for name, column in columns.items()},
        "test": {name: column[test].astype(np.float32) for name, column in columns.items()},
    }


def tower():
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 256),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 32),
    )


def model():
    return {
        "query": tower(),
        "item": tower(),
        "log_scale": torch.tensor(2.0),
        "optimizer": ef.AdamW(lr=LR),
    }


def encode(query, item, other, params):
    # Of each slice by itself, twice: before forward(), and where the gradient goes back.
    return {
        "query": F.normalize(params["query"](query), dim=1),
        "item": F.normalize(params["item"](item), dim=1),
    }


def forward(query, item, params):
    # Of the whole batch: all slices' queries and items are here, whoever computed them.
    scores = params["log_scale"].exp() * query @ item.T
    labels = torch.arange(len(query))
    return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


def metrics(query, item, other, params):
    asked = params["query"](query)
    right, wrong = (F.normalize(params["item"](each), dim=1) for each in (item, other))
    return {"accuracy": ((asked * right).sum(1) > (asked * wrong).sum(1)).float().mean()}
