"""What both programs share: the records, and the numbers that decide what is learned."""

from pathlib import Path

import elasticflow as ef

FOLDER = Path(__file__).parent / "data"
PADDING = -1
NUM_COLUMNS = 6
"""Of ``ids``."""

DIM, LAYERS = 16, (128, 64)
OPTIMIZER = ef.Adagrad(lr=0.01)
"""Of the layers."""
DEEP = {"initializer": ef.Normal(std=0.05), "optimizer": ef.Adagrad(lr=0.01)}
WIDE = {"initializer": ef.Constant(0.0), "optimizer": ef.Ftrl(lr=0.2, beta=0.001, l1=0.002)}
"""A gradient is the mean over a thousand records: with one record a step, beta and l1 would be 1 and 2."""


def data():
    return {name: ef.data.NPZ(FOLDER / f"{name}.npz") for name in ("train", "test")}
