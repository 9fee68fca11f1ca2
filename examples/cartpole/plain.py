"""The same in plain PyTorch."""

import argparse

import torch
from episodes import EPISODES, HELD_OUT, LR, SEEDS, ActorCritic, cost_of, length_of

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=5)
options.add_argument("--seed", type=int, default=0)
options = options.parse_args()

torch.manual_seed(options.seed)
net = ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), lr=LR)
for _ in range(options.epochs):
    for seeds in torch.randperm(SEEDS).split(EPISODES):
        optimizer.zero_grad()
        cost_of(net, seeds)[0].backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
print(f"length {length_of(net, range(HELD_OUT, HELD_OUT + 8)):.1f}")
