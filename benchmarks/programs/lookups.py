"""Ids in bags of different lengths, and labels that follow from them, for programs with tables."""

import numpy as np

PADDING, RECORDS, WORDS, USERS = -1, 1600, 6, 50


def columns():
    rng = np.random.default_rng(7)
    words = rng.zipf(1.3, size=(RECORDS, WORDS)).astype(np.int64) * 1_000_003
    words[np.arange(WORDS) >= rng.integers(0, WORDS + 1, RECORDS)[:, None]] = PADDING
    users = rng.integers(0, USERS, RECORDS)
    return {"words": words, "user": users, "y": ((words % 7 < 3).sum(1) + users % 3 > 4).astype(np.int64)}
