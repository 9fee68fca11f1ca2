"""ResNet-50 (He et al., CVPR 2016) in bfloat16, on images of noise."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import elasticflow as ef

IMAGES, CLASSES = 4096, 1000


class Block(nn.Module):
    """A bottleneck: 1 x 1, 3 x 3, 1 x 1."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        return (self.body(x) + self.skip(x)).relu()


def net():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Block(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.ModuleDict({"body": nn.Sequential(*layers), "head": nn.Linear(inputs, CLASSES)})


def model():
    return {"net": net(), "optimizer": ef.SGD(lr=0.1, momentum=0.9)}


def forward(x, y, params):
    with torch.autocast(x.device.type, torch.bfloat16):
        features = params["net"]["body"](x.float() / 128 - 1).mean((2, 3))
        return cross_entropy(params["net"]["head"](features), y)


def arrays():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (IMAGES, 3, 224, 224), np.uint8)
    return {"x": x, "y": rng.integers(0, CLASSES, IMAGES)}


def data():
    return {"train": ef.data.Arrays(**arrays())}


def optimizer(parameters):
    """The plain loop's."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
