"""Which of eight languages is a text of? Texts of different lengths, read by a small net. See README.md."""

import numpy as np
import torch
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH, LR = 4, 64, 5e-3
LANGUAGES, LETTERS, WIDTH = 8, 30, 32
TRAIN, TEST = 8000, 2000


class Reader(torch.nn.Module):
    """Looks at three letters at a time, and takes the mean over a text's own places."""

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS + 1, WIDTH, padding_idx=0)
        self.triples = torch.nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=1)
        self.head = torch.nn.Linear(2 * WIDTH, LANGUAGES)

    def forward(self, text, lengths):
        seen = F.relu(self.triples(self.letters(text).transpose(1, 2)))
        there = torch.arange(text.shape[1]) < lengths.unsqueeze(1)
        return self.head((seen * there.unsqueeze(1)).sum(2) / lengths.unsqueeze(1))


def texts():
    """Texts as arrays of letters from 1 on, 10 to 60 of them, and their languages.

    A language is a table of which letter follows which. The tables are alike: short texts are hard to tell.
    """
    rng = np.random.default_rng(1)
    common = rng.normal(size=(LETTERS, LETTERS))
    odds = np.exp(common + 0.8 * rng.normal(size=(LANGUAGES, LETTERS, LETTERS)))
    follows = (odds / odds.sum(2, keepdims=True)).cumsum(2)
    language = rng.integers(0, LANGUAGES, TRAIN + TEST)
    lengths = rng.integers(10, 61, TRAIN + TEST)
    letters = np.empty((TRAIN + TEST, 60), np.int64)
    letters[:, 0] = rng.integers(0, LETTERS, TRAIN + TEST)
    for place in range(1, 60):
        chances = follows[language, letters[:, place - 1]]
        letters[:, place] = (rng.random((TRAIN + TEST, 1)) > chances).sum(1).clip(max=LETTERS - 1)
    return [row[:length] + 1 for row, length in zip(letters, lengths, strict=True)], language


def data():
    text, language = texts()
    # Texts are padded with 0, as long as the longest of their slice; their lengths come along.
    ragged = ef.data.Ragged.of
    return {
        "train": {"text": ragged(text[:TRAIN]), "language": language[:TRAIN]},
        "test": {"text": ragged(text[TRAIN:]), "language": language[TRAIN:]},
    }


def model():
    return {"net": Reader(), "optimizer": ef.Adam(lr=LR, clip_norm=1.0)}


def forward(text, text_lengths, language, params):
    return F.cross_entropy(params["net"](text, text_lengths), language)


def metrics(text, text_lengths, language, params):
    return {"accuracy": ef.metrics.accuracy(params["net"](text, text_lengths), language)}
