"""Raises on certain records (BAD, once the file WHEN is there), or gives them no finite cost (NAN).

With ONCE it raises one single time, in one process, as soon as the file of that name is there; with FULL
everywhere, as long as it is.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate


def rows(name):
    return {int(row) for row in os.environ.get(name, "").split(",") if row}


BAD, NAN = rows("BAD"), rows("NAN")
WHEN, ONCE, FULL = (os.environ.get(name) for name in ("WHEN", "ONCE", "FULL"))


def model():
    return {"w": torch.ones(3), "optimizer": ef.SGD(momentum=0.9)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def took(path):
    """Whether the file was there, for one process alone."""
    with suppress(FileNotFoundError):
        os.unlink(path)
        return True
    return False


def forward(row, x, params):
    bad = BAD.intersection(row.tolist())
    if bad and (WHEN is None or Path(WHEN).exists()):
        raise ValueError(f"cannot read record {min(bad)}")
    if ONCE and took(ONCE):
        raise OSError("a hiccup of this machine")
    if FULL and Path(FULL).exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    cost = (x @ params["w"]).square()
    return torch.where(torch.tensor([int(r) in NAN for r in row]), torch.nan, cost).mean()


def data():
    x = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    return {"row": np.arange(200), "x": x}
