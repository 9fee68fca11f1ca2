"""Clusters of handwritten digits, by k-means: no gradients, but sums over all records."""

import torch
from sklearn.datasets import load_digits

CLUSTERS = 10


def data():
    x, _ = load_digits(return_X_y=True)
    return {"x": (x / 16).astype("float32")}


def model():
    return {"centers": torch.from_numpy(data()["x"][:CLUSTERS].copy())}


def loop(session):
    centers = session.params["centers"]
    session.keep(centers=centers)
    for step in session.steps():
        for part in step.slices():
            distances = torch.cdist(part.x, centers)
            nearest = torch.nn.functional.one_hot(distances.argmin(1), CLUSTERS).float()
            step.all_reduce("sums", nearest.T @ part.x)
            step.all_reduce("counts", nearest.sum(0))
            step.cost(distances.min(1).values.square().mean())
        counts = step.total("counts")[:, None]
        # A cluster without records stays where it is.
        centers.copy_(torch.where(counts > 0, step.total("sums") / counts.clamp(min=1), centers))
