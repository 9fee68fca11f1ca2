"""Ragged texts made by chance from a map-style dataset, mixed with others, and collated."""

import random

import numpy as np
import torch

import elasticflow as ef
from gates import pass_gate

WORDS = 50


class Texts:
    """Words that follow from the number; which of them are left out follows from chance."""

    def __init__(self, length, first):
        self._length, self._first = length, first

    def __len__(self):
        return self._length

    def __getitem__(self, number):
        rng = np.random.default_rng(self._first + number)
        words = rng.integers(1, WORDS, rng.integers(2, 9))
        kept = [word for word in words if random.random() < 0.9]
        return {"text": np.array(kept or [0]), "y": int(words.sum() % 2)}


def data():
    pad = {"text": ef.data.Pad(multiple=2)}
    old, new = (ef.data.Indexed(Texts(*each), pad=pad) for each in ((400, 0), (90, 1000)))
    mixed = ef.data.Mix((old, 0.7), (new, 0.3), records=500)
    noisy = ef.data.Collate(mixed, lambda c: {**c, "noise": torch.rand(len(c["y"]))})
    return {"train": noisy, "test": ef.data.Collate(new, lambda c: {**c, "noise": torch.rand(len(c["y"]))})}


def model():
    words = torch.nn.EmbeddingBag(WORDS, 8, mode="sum", padding_idx=0)
    return {"words": words, "out": torch.nn.Linear(8, 2), "optimizer": ef.Adam(lr=0.01)}


def learning_rate(step, epoch):
    pass_gate(f"step {step}")
    return 0.01


def forward(text, text_lengths, y, noise, params):
    mean = params["words"](text) / text_lengths.unsqueeze(1) + 0.01 * noise.unsqueeze(1)
    return torch.nn.functional.cross_entropy(params["out"](mean.float()), y)
