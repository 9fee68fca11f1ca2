"""A loop of the program's own, in PyTorch. HOW it does it:

"push" and "forward" are the same model; "each" pushes gradient by gradient; "own" has an optimizer of its
own; "rounds" trains two nets by turns.
"""

import os
import time

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

HOW = os.environ.get("HOW", "push")
SLICE_S = float(os.environ.get("SLICE_S", "0"))


def data():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((480, 6)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(np.int64)}


def model():
    first, last = torch.nn.Linear(6, 16), torch.nn.Linear(16, 2)
    net = torch.nn.Sequential(first, torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2), last)
    if HOW == "own":
        return {"net": net}
    if HOW == "rounds":
        critic = torch.nn.Linear(2, 1)
        optimizer = ef.Groups(ef.Adam(lr=0.01), {"critic.*": ef.SGD(lr=0.1)})
        return {"net": net, "critic": critic, "optimizer": optimizer}
    return {"net": net, "optimizer": ef.Adam(lr=0.01)}


def cost(x, y, net):
    return torch.nn.functional.cross_entropy(net(x), y)


def wait(x):
    if SLICE_S:
        time.sleep(SLICE_S)


if HOW == "forward":

    def forward(x, y, params):
        wait(x)
        return cost(x, y, params["net"])

    def learning_rate(step, epoch):
        pass_gate(f"step {step}")
        return 0.01

else:

    def loop(session):
        {"push": pushed, "each": each, "own": own, "rounds": rounds}[HOW](session)


def pushed(session):
    net = session.params["net"]
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait(part.x)
            loss = cost(part.x, part.y, net)
            loss.backward()
            step.cost(loss)
            step.push(net)


def each(session):
    net = session.params["net"]
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait(part.x)
            loss = cost(part.x, part.y, net)
            parameters = list(net.parameters())
            step.cost(loss)
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters[::-1], gradients[::-1], strict=True):
                step.push(parameter, gradient)


def own(session):
    net = session.params["net"]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    best = torch.zeros(())
    session.keep(net=net, optimizer=optimizer, schedule=schedule, best=best)
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait(part.x)
            loss = cost(part.x, part.y, net)
            loss.backward()
            for name, parameter in net.named_parameters():
                step.all_reduce(name, parameter.grad, "mean")
            step.all_reduce("loss", loss, "mean")
            step.all_reduce("records", len(part))
            step.broadcast("drawn", torch.rand(2))
        for name, parameter in net.named_parameters():
            parameter.grad = step.total(name)
        optimizer.step()
        schedule.step()
        best.copy_(torch.minimum(best, -step.total("loss")) + step.total("drawn").sum() + torch.rand(()))
        assert step.total("records") in (40, 2)  # of the two records that a loop is tried with


def rounds(session):
    net, critic = session.params["net"], session.params["critic"]
    seen = torch.zeros((), dtype=torch.int64)
    session.keep(seen=seen)
    for step in session.steps():
        for part in step.slices():
            pass_gate(f"step {step.number - 1}")
            wait(part.x)
            critic(net(part.x).detach()).square().mean().backward()
            step.push(critic)
            step.all_reduce("right", (net(part.x).argmax(1) == part.y).sum())
        right = step.total("right")
        for part in step.slices():
            pass_gate(f"step {step.number - 1} again")
            loss = cost(part.x, part.y, net) + critic(net(part.x)).mean() * (right / 480)
            loss.backward()
            step.cost(loss)
            step.push(net)
        for part in step.slices():
            (critic(net(part.x).detach()).mean() - 1).square().backward()
            step.push(critic)
        seen += 1 + right
