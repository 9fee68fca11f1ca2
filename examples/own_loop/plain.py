"""The same in plain PyTorch."""

import argparse

import torch
from nets import accuracy_of, cost_of, net
from parts import LR, digits

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--seed", type=int, default=0)
options = options.parse_args()

torch.manual_seed(options.seed)
found = digits()
train, test = ({n: torch.from_numpy(a) for n, a in found[name].items()} for name in ("train", "test"))
net = net()
optimizer = torch.optim.SGD(net.parameters(), lr=LR)
for _ in range(options.epochs):
    for rows in torch.randperm(len(train["x"])).split(64):
        optimizer.zero_grad()
        cost_of(net, train["x"][rows], train["y"][rows]).backward()
        optimizer.step()
print(f"accuracy {accuracy_of(net, **test):.4f}")
