"""The same in plain PyTorch."""

import argparse

import torch
from gan import NOISE, critics_cost, data, generators_cost, nets

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=20)
options.add_argument("--seed", type=int, default=0)
options = options.parse_args()

torch.manual_seed(options.seed)
real = torch.from_numpy(data()["real"])
generator, critic = nets()
generators = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
critics = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.5, 0.999))
for _ in range(options.epochs):
    for rows in torch.randperm(len(real)).split(128):
        critics.zero_grad()
        critics_cost(generator, critic, real[rows]).backward()
        critics.step()
        generators.zero_grad()
        generators_cost(generator, critic, real[rows]).backward()
        generators.step()
made = generator(torch.randn(10_000, NOISE))
print(f"mean: {made.mean():.3f}, spread: {made.std():.3f}")
