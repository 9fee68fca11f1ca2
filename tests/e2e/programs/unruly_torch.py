"""Loops that break a rule: HOW."""

import os

import numpy as np
import torch

import elasticflow as ef

HOW = os.environ["HOW"]
COUNT = [0]


def data():
    return {"x": np.arange(48, dtype=np.float32).reshape(48, 1), "row": np.arange(48)}


def model():
    return {"net": torch.nn.Linear(1, 1), "optimizer": ef.SGD(lr=1e-5)}


def loop(session):
    net = session.params["net"]
    for step in session.steps():
        late = step.number >= 4
        if HOW == "raises between" and late:
            raise KeyError("gone")
        if HOW == "returns" or (HOW == "returns late" and step.number >= 5):
            return
        for part in step.slices():
            COUNT[0] += 1
            if HOW == "breaks" and step.number == 3:
                break
            if HOW == "a bad record" and (part.row == 31).any():
                raise ValueError("a bad record")
            net(part.x).square().mean().backward()
            if HOW == "writes":
                net.weight.data.mul_(1)
                with torch.no_grad():
                    net.weight.mul_(1)
            if HOW == "counts":
                net.bias.grad += COUNT[0]
            if HOW == "wrong":
                step.push(net.bias, torch.zeros(2))
            if HOW == "forgets":
                step.push(net.weight)
            elif HOW != "pushes nothing" and HOW != "outside":
                step.push(net)
            if HOW == "twice":
                step.push(net.bias, torch.zeros(1))
            if HOW == "another shape":
                step.all_reduce("sum", part.x[: 1 + late])
            if HOW == "another name":
                step.all_reduce("a 2" if late else "a 1", 1)
            if HOW == "early":
                step.all_reduce("sum", 1)
                step.total("sum")
        if HOW == "outside":
            step.push(net)
        if (HOW == "one more round" and late) or (HOW == "another round" and not late):
            for part in step.slices():
                step.all_reduce("again", len(part))
