"""How a diabetes patient fares after a year: linear regression, from two bare tensors. See README.md."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes

import elasticflow as ef


def data():
    x, y = load_diabetes(return_X_y=True)  # 442 patients, 10 figures each, of mean 0 and a small scale
    x = (x / x.std(axis=0)).astype(np.float32)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))  # the same in every process
    test, train = np.split(order, [len(x) // 5])
    # Tuples are bound to the arguments of forward() and metrics() by position, dicts by name.
    return {"train": (x[train], y[train]), "test": (x[test], y[test])}


def model():
    # No module: a tensor of floating numbers is a parameter.
    return {"slope": torch.zeros(10), "offset": torch.zeros(()), "optimizer": ef.SGD(lr=0.05)}


def predicted(x, params):
    return x @ params["slope"] + params["offset"]


def forward(x, y, params):
    return ((predicted(x, params) - y) ** 2).mean()


def metrics(x, y, params):
    # y has a variance of 1, so 1 minus this mean is the share of the variance that is explained.
    return {"squared error": ((predicted(x, params) - y) ** 2).mean()}


def learning_rate(step, epoch):
    return 0.05 * 0.9**epoch
