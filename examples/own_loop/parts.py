"""Handwritten digits, for all loops of this folder."""

import numpy as np
from sklearn.datasets import load_digits

LR = 0.5


def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    return {"train": {"x": x[:1536], "y": y[:1536]}, "test": {"x": x[1536:], "y": y[1536:]}}
