"""PyTorch's backward pass; gradients are averaged by all_reduce, and PyTorch's optimizer makes the update."""

import torch
from nets import accuracy_of, cost_of, net
from parts import LR, digits


def data():
    return digits()


def model():
    return {"net": net()}


def loop(session):
    net = session.params["net"]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    session.keep(net=net, optimizer=optimizer)
    for step in session.steps():
        for part in step.slices():
            loss = cost_of(net, part.x, part.y)
            loss.backward()
            step.cost(loss)
            for name, parameter in net.named_parameters():
                step.all_reduce(name, parameter.grad, "mean")
        for name, parameter in net.named_parameters():
            parameter.grad = step.total(name)
        optimizer.step()


def forward(x, y, params):  # of evaluations
    return cost_of(params["net"], x, y)


def metrics(x, y, params):
    return {"accuracy": accuracy_of(params["net"], x, y)}
