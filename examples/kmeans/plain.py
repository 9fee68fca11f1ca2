"""The same in plain PyTorch."""

import argparse

import numpy as np
import torch
from kmeans import CLUSTERS, data

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--out", default="")
options = options.parse_args()

x = torch.from_numpy(data()["x"])
centers = x[:CLUSTERS].clone()
for _ in range(options.epochs):
    distances = torch.cdist(x, centers)
    nearest = torch.nn.functional.one_hot(distances.argmin(1), CLUSTERS).float()
    counts = nearest.sum(0)[:, None]
    centers = torch.where(counts > 0, nearest.T @ x / counts.clamp(min=1), centers)
print(f"mean squared distance: {torch.cdist(x, centers).min(1).values.square().mean():.5f}")
if options.out:
    np.save(options.out, centers.numpy())
