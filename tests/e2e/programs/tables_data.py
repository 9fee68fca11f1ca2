"""Ids of a zipf distribution, in bags of different lengths, and labels that follow from them."""

import numpy as np

import elasticflow as ef

PADDING = -1
RECORDS, WORDS, USERS = 960, 6, 50


def data():
    rng = np.random.default_rng(7)
    words = rng.zipf(1.3, size=(RECORDS, WORDS)).astype(np.int64) * 1_000_003
    lengths = rng.integers(0, WORDS + 1, RECORDS)
    words[np.arange(WORDS) >= lengths[:, None]] = PADDING
    users = rng.integers(0, USERS, RECORDS)
    names = np.array([f"place-{number}" for number in rng.zipf(1.5, RECORDS) % 400])
    y = ((words % 7 < 3).sum(1) + users % 3 + rng.normal(size=RECORDS) > 4).astype(np.int64)
    columns = {"words": words, "user": users, "place": ef.hash_ids(names), "y": y}
    train, test = slice(0, 800), slice(800, None)
    return {
        "train": ef.data.Arrays(**{name: column[train] for name, column in columns.items()}),
        "test": ef.data.Arrays(**{name: column[test] for name, column in columns.items()}),
    }
