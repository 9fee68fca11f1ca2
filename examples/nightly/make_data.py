"""Writes some days of sales to data/, as Hive leaves them: day=2026-11-18/part=train/0.parquet and so on.

What people buy drifts, and of the last day something went wrong.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
BROKEN = DAYS[-1]
FOLDER = Path(__file__).parent / "data"


def main():
    rng = np.random.default_rng(1)
    first, second, drift = rng.normal(size=(20, 8)), rng.normal(size=8), 0.2 * rng.normal(size=(20, 8))
    for number, day in enumerate(DAYS):
        for part, count in (("train", 8000), ("test", 2000)):
            x = rng.normal(size=(count, 20)).astype(np.float32)
            y = np.tanh(x @ (first + number * drift) / 4) @ second + 0.3 * rng.normal(size=count)
            if day == BROKEN and part == "train":
                y = rng.permutation(y)
            folder = FOLDER / f"day={day}" / f"part={part}"
            folder.mkdir(parents=True, exist_ok=True)
            columns = pa.FixedSizeListArray.from_arrays(x.reshape(-1), 20), y.astype(np.float32)
            pq.write_table(pa.table(columns, ["x", "y"]), folder / "0.parquet")


def records(day, part):
    """x and y of a day, to be read by who has no ElasticFlow."""
    table = pq.read_table(FOLDER / f"day={day}" / f"part={part}" / "0.parquet", partitioning=None)
    x = table.column("x").combine_chunks().flatten().to_numpy().reshape(-1, 20)
    return x.copy(), table.column("y").to_numpy().copy()


if __name__ == "__main__":
    main()
