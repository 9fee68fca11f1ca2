"""Will it be clicked? A wide and deep model in PyTorch. See README.md."""

import clicks
import torch
from torch.nn import Linear, ReLU

import elasticflow as ef

data = clicks.data


def model():
    first, second = clicks.LAYERS
    width = 4 + (clicks.NUM_COLUMNS + 1) * clicks.DIM  # x, and the vectors of ids and of interests
    net = torch.nn.Sequential(Linear(width, first), ReLU(), Linear(first, second), ReLU(), Linear(second, 1))
    return {
        "wide": ef.Embedding(None, 1, **clicks.WIDE),
        "deep": ef.Embedding(None, clicks.DIM, **clicks.DEEP),
        "net": net,
        "optimizer": clicks.OPTIMIZER,
    }


def log_odds(x, ids, interests, crosses, params):
    # What is looked up comes from the parameter servers: only the rows of these records.
    wide = params["wide"](crosses, combine="sum", padding=clicks.PADDING)
    columns = params["deep"](ids).flatten(start_dim=1)
    tastes = params["deep"](interests, combine="mean", padding=clicks.PADDING)
    deep = params["net"](torch.cat([x, columns, tastes], dim=1))
    return (wide + deep).squeeze(1)


def forward(x, ids, interests, crosses, y, params):
    scores = log_odds(x, ids, interests, crosses, params)
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, y)


def metrics(x, ids, interests, crosses, y, params):
    # Called with some records of "test" at a time; the mean of what it returns is reported.
    scores = log_odds(x, ids, interests, crosses, params)
    return {"accuracy": ((scores > 0) == (y > 0)).float().mean(), "auc": auc(scores, y)}


def auc(scores, y):
    """The share of pairs, one clicked and one not, in which the clicked one scores higher."""
    clicked, others = scores[y > 0], scores[y == 0]
    pairs = clicked[:, None] > others
    return pairs.float().mean() if pairs.numel() else 0.5
