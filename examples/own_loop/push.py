"""PyTorch's backward pass; for each gradient, last layer first: push. The servers make the update."""

import torch
from nets import accuracy_of, cost_of, net
from parts import LR, digits

import elasticflow as ef


def data():
    return digits()


def model():
    return {"net": net(), "optimizer": ef.SGD(lr=LR)}


def loop(session):
    net = session.params["net"]
    parameters = list(net.parameters())
    for step in session.steps():
        for part in step.slices():
            loss = cost_of(net, part.x, part.y)
            gradients = torch.autograd.grad(loss, parameters)
            step.cost(loss)
            for parameter, gradient in zip(parameters[::-1], gradients[::-1], strict=True):
                step.push(parameter, gradient)


def forward(x, y, params):  # of evaluations
    return cost_of(params["net"], x, y)


def metrics(x, y, params):
    return {"accuracy": accuracy_of(params["net"], x, y)}
