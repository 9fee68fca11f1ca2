"""Writes some days of sales to data/: what people buy drifts, and of the last day something went wrong."""

from pathlib import Path

import numpy as np

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
BROKEN = DAYS[-1]
FOLDER = Path(__file__).parent / "data"


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    first, second, drift = rng.normal(size=(20, 8)), rng.normal(size=8), 0.2 * rng.normal(size=(20, 8))
    for number, day in enumerate(DAYS):
        for part, count in (("train", 8000), ("test", 2000)):
            x = rng.normal(size=(count, 20)).astype(np.float32)
            y = np.tanh(x @ (first + number * drift) / 4) @ second + 0.3 * rng.normal(size=count)
            if day == BROKEN and part == "train":
                y = rng.permutation(y)
            np.savez(FOLDER / f"{day}-{part}.npz", x=x, y=y.astype(np.float32))


if __name__ == "__main__":
    main()
