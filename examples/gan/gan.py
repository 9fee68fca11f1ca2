"""A generator and a critic that take turns: two rounds a step, each with an optimizer of its own."""

import numpy as np
import torch

import elasticflow as ef

NOISE = 8
cost = torch.nn.functional.binary_cross_entropy_with_logits


def data():
    real = np.random.default_rng(0).normal(4.0, 1.25, (4096, 1))
    return {"real": real.astype(np.float32)}


def nets():
    generator = torch.nn.Sequential(torch.nn.Linear(NOISE, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    critic = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    return generator, critic


def critics_cost(generator, critic, real):
    fake = generator(torch.randn(len(real), NOISE)).detach()
    told, made = critic(real), critic(fake)
    return cost(told, torch.ones_like(told)) + cost(made, torch.zeros_like(made))


def generators_cost(generator, critic, real):
    made = critic(generator(torch.randn(len(real), NOISE)))
    return cost(made, torch.ones_like(made))


def model():
    generator, critic = nets()
    optimizer = ef.Groups(
        ef.Adam(lr=2e-3, betas=(0.5, 0.999)), {"critic.*": ef.Adam(lr=5e-3, betas=(0.5, 0.999))}
    )
    return {"generator": generator, "critic": critic, "optimizer": optimizer}


def loop(session):
    generator, critic = session.params["generator"], session.params["critic"]
    for step in session.steps():
        for part in step.slices():
            critics_cost(generator, critic, part.real).backward()
            step.push(critic)
        for part in step.slices():  # the same records once more, with a critic that has learned
            loss = generators_cost(generator, critic, part.real)
            loss.backward()
            step.cost(loss)
            step.push(generator)
