"""Handwritten digits by a small residual net, trained as such nets usually are. See README.md."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH = 10, 128
LR, MOMENTUM, DECAY, EMA = 0.1, 0.9, 5e-4, 0.95
STEPS, WARMUP = EPOCHS * 12, 12  # 1,438 records are 12 batches


class Block(torch.nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(outputs)
        self.around = torch.nn.Identity()
        if (inputs, stride) != (outputs, 1):
            self.around = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.around(x))


def resnet():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1, bias=False),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )


def digits():
    """By "train" and "test": images of 1 by 8 by 8, and labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))  # the same in every process
    test, train = np.split(order, [len(x) // 5])
    return {"train": {"x": x[train], "y": y[train]}, "test": {"x": x[test], "y": y[test]}}


def augment(columns):
    """Moves each image by up to a pixel, and makes it darker or lighter."""
    x = columns["x"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    down, right = np.random.randint(0, 3, (2, len(x)))
    moved = [image[:, i : i + 8, j : j + 8] for image, i, j in zip(padded, down, right, strict=True)]
    shade = np.random.uniform(0.8, 1.2, (len(x), 1, 1, 1)).astype(np.float32)
    return {**columns, "x": np.stack(moved) * shade}


def data():
    found = digits()
    # NumPy's random state is set before each call to what follows from seed, epoch and records.
    return {"train": ef.data.Collate(ef.data.Arrays(**found["train"]), augment), "test": found["test"]}


def model():
    optimizer = ef.SGD(lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY, ema=EMA)
    plain = {"weight_decay": 0}
    return {"net": resnet(), "optimizer": ef.Groups(optimizer, {"*.norm?.*": plain, "*.bias": plain})}


learning_rate = ef.lr.warmup(WARMUP, ef.lr.cosine(LR))  # to the end of the run


def forward(x, y, params):
    return F.cross_entropy(params["net"](x), y, label_smoothing=0.05)


def metrics(x, y, params):
    return {"accuracy": ef.metrics.accuracy(params["net"](x), y)}
