"""GPT with 124 M parameters (Radford et al., 2019) in bfloat16, on noise for a text."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import elasticflow as ef

SEQUENCES, LENGTH, WORDS, WIDTH, HEADS, LAYERS = 512, 1024, 50304, 768, 12, 12


class Block(nn.Module):
    """Attention and a perceptron, each beside what comes in."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        size = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part.view(size).transpose(1, 2) for part in self.heads(self.norm1(x)).split(WIDTH, 2))
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x):
        hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.norm(self.blocks(hidden)) @ self.words.weight.T


def net():
    return Net()


def model():
    return {"net": net(), "optimizer": ef.AdamW(lr=1e-4)}


def forward(x, params):
    with torch.autocast(x.device.type, torch.bfloat16):
        words = params["net"](x[:, :-1])
        return cross_entropy(words.flatten(0, 1), x[:, 1:].flatten().long())


def arrays():
    return {"x": np.random.default_rng(0).integers(0, WORDS, (SEQUENCES, LENGTH + 1), np.int32)}


def data():
    return {"train": ef.data.Arrays(**arrays())}


def optimizer(parameters):
    """The plain loop's."""
    return torch.optim.AdamW(parameters, lr=1e-4)
