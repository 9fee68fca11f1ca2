"""What the program and its plain version have in common: the net, episodes, and their cost."""

import functools

import gymnasium
import numpy as np
import torch

LR, EPISODES, FADING = 0.01, 16, 0.98
SEEDS = 64  # an epoch has an episode for each
LONGEST = 200
HELD_OUT = 10_000  # seeds from here on are to test with


class ActorCritic(torch.nn.Module):
    """Of an observation: which way to push the cart, as logits, and what is to be expected from there on."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 64)
        self.actor, self.critic = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)

    def forward(self, observation):
        inner = torch.tanh(self.inner(observation))
        return self.actor(inner), self.critic(inner)[..., 0]


@functools.cache
def carts(count):
    return [gymnasium.make("CartPole-v1", max_episode_steps=LONGEST) for _ in range(count)]


def played(net, seeds, act):
    """Plays an episode for each seed, all at once: lengths, and costs where ``act`` tells log-probabilities.

    An episode follows from its seed, the parameters, and the random numbers that ``act`` draws.
    """
    alive, lengths = list(range(len(seeds))), [0] * len(seeds)
    steps = [[] for _ in seeds]
    seen = {n: cart.reset(seed=int(seeds[n]))[0] for n, cart in enumerate(carts(len(seeds)))}
    while alive:
        logits, values = net(torch.from_numpy(np.stack([seen[n] for n in alive])))
        actions = act(logits)
        logs = torch.log_softmax(logits, -1)
        for place, n in enumerate(list(alive)):
            seen[n], _, fell, over, _ = carts(len(seeds))[n].step(int(actions[place]))
            lengths[n] += 1
            steps[n].append((logs[place], actions[place], values[place]))
            if fell or over:
                alive.remove(n)
    return lengths, steps


def sampled(logits):
    return torch.multinomial(torch.softmax(logits.detach(), -1), 1)[:, 0]


def best(logits):
    return logits.argmax(-1)


def cost_of(net, seeds):
    """The mean cost of these episodes, and their mean length."""
    lengths, steps = played(net, seeds, sampled)
    costs = []
    for episode in steps:
        logs = torch.stack([log for log, _, _ in episode])
        chosen = logs[range(len(episode)), [int(action) for _, action, _ in episode]]
        values = torch.stack([value for _, _, value in episode])
        returns, following = [], 0.0
        for _ in episode:  # each step that the pole stands is worth 1
            following = 1.0 + FADING * following
            returns.append(following * (1 - FADING))
        gain = torch.tensor(returns[::-1]) - values
        entropy = -(logs.exp() * logs).sum(-1)
        costs.append((gain.square() - chosen * gain.detach() - 0.01 * entropy).sum() / LONGEST)
    return torch.stack(costs).mean(), float(np.mean(lengths))


def length_of(net, seeds):
    """The mean length of episodes in which the likelier way is always taken."""
    with torch.no_grad():
        return float(np.mean(played(net, seeds, best)[0]))
