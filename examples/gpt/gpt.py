"""A small GPT that writes like Python's manual, character by character. See README.md."""

from pydoc_data.topics import topics  # part of Python: no download

import numpy as np
import torch
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH, CONTEXT = 2, 16, 64
SYMBOLS, WIDTH, HEADS, LAYERS, DROPOUT = 128, 64, 4, 2, 0.1
LR, DECAY, CLIP = 3e-3, 0.1, 1.0
STEPS, WARMUP = EPOCHS * 67, 20


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.into, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(DROPOUT)

    def forward(self, x):
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (each.reshape(shape).transpose(1, 2) for each in self.into(self.norm1(x)).chunk(3, dim=2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.back(F.gelu(self.wide(self.norm2(x)))))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.symbol = torch.nn.Embedding(SYMBOLS, WIDTH)
        self.place = torch.nn.Embedding(CONTEXT, WIDTH)
        self.layers = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, SYMBOLS)
        for each in (self.symbol, self.place):
            torch.nn.init.normal_(each.weight, std=0.02)

    def forward(self, text):
        x = self.symbol(text) + self.place.weight[: text.shape[1]]
        return self.head(self.norm(self.layers(x)))


def windows():
    """By "train" and "test": windows of CONTEXT characters, and the one after each."""
    text = "".join(topics[name] for name in sorted(topics))[:80_000]
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    whole = codes[: len(codes) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)
    whole = np.hstack([whole[:-1], whole[1:, :1]])
    test = np.arange(len(whole)) % 7 == 0
    return {"train": {"text": whole[~test]}, "test": {"text": whole[test]}}


def data():
    return windows()


def model():
    plain = {"weight_decay": 0}
    optimizer = ef.AdamW(lr=LR, betas=(0.9, 0.95), weight_decay=DECAY, clip_norm=CLIP)
    groups = {"*.bias": plain, "*norm*": plain, "net.symbol.*": plain, "net.place.*": plain}
    return {"net": GPT(), "optimizer": ef.Groups(optimizer, groups)}


learning_rate = ef.lr.warmup(WARMUP, ef.lr.cosine(LR, least=LR / 10))  # to the end of the run


def forward(text, params):
    with torch.autocast("cpu", torch.bfloat16):  # params themselves stay in float32
        odds = params["net"](text[:, :-1])
    return F.cross_entropy(odds.float().flatten(0, 1), text[:, 1:].flatten())
