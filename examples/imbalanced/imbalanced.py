"""Rare events in a table: weights for the cost, an area under the curve, and when to stop. See README.md."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH, LR, DECAY, PATIENCE = 20, 256, 2e-3, 1e-2, 4
RARE = 0.03


def data():
    x, y = make_classification(
        20_000, 40, n_informative=15, weights=[1 - RARE], class_sep=0.6, flip_y=0.01, random_state=1
    )
    x, y = x.astype(np.float32), y.astype(np.float32)
    # A rare record counts as much as the others of its kind are missing.
    weight = np.where(y > 0, 0.5 / RARE, 0.5 / (1 - RARE)).astype(np.float32)
    train, test = slice(0, 16_000), slice(16_000, None)
    return {
        "train": {"x": x[train], "y": y[train], "weight": weight[train]},
        "test": {"x": x[test], "y": y[test], "weight": weight[test]},
    }


def net():
    return torch.nn.Sequential(
        torch.nn.Linear(40, 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 1),
        torch.nn.Flatten(0),
    )


def model():
    return {"net": net(), "optimizer": ef.AdamW(lr=LR, weight_decay=DECAY)}


# It ends after so many evaluations without a gain. 'elasticflow export --best' has the best checkpoint.
early_stopping = ef.early_stopping("auc", patience=PATIENCE, mode="max")


def forward(x, y, weight, params):
    return F.binary_cross_entropy_with_logits(params["net"](x), y, weight)


def metrics(x, y, weight, params):
    # Sums over all test records make each of these: a mean over slices would be another number.
    scores = torch.sigmoid(params["net"](x))
    return {"auc": ef.metrics.auc(scores, y), "recall": ef.metrics.recall(scores, y)}
