"""What will be sold? Trained on one day's records, from where yesterday's model was. See README.md."""

from pathlib import Path

import torch

import elasticflow as ef

FOLDER = Path(__file__).parent / "data"
EPOCHS, BATCH, LR = 5, 128, 3e-3
settings = ef.args(day="2026-11-18")  # of the command line: --set day=2026-11-19


def net():
    return torch.nn.Sequential(
        torch.nn.Linear(20, 256),
        torch.nn.Tanh(),
        torch.nn.Linear(256, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 1),
        torch.nn.Flatten(0),
    )


def data():
    day = FOLDER / f"day={settings.day}"
    return {part: ef.data.Parquet(day / f"part={part}", ["x", "y"]) for part in ("train", "test")}


def model():
    return {"net": net(), "optimizer": ef.Adam(lr=LR)}


def forward(x, y, params):
    return torch.nn.functional.mse_loss(params["net"](x), y)
