"""Writes a table of clicks as Hive leaves it: a folder a day, files without an ending, texts and gaps."""

import datetime
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAYS, PER_DAY, SITES, USERS, TAGS = 5, 4000, 40, 3000, 30
FIRST = datetime.date(2026, 11, 16)


def main(folder: Path) -> None:
    rng = np.random.default_rng(1)
    of_site, of_user, of_tag = rng.normal(size=SITES), 0.5 * rng.normal(size=USERS), rng.normal(size=TAGS)
    for day in range(DAYS):
        site, user = rng.integers(0, SITES, PER_DAY), rng.integers(0, USERS, PER_DAY)
        age = rng.integers(15, 80, PER_DAY)
        tags = [rng.integers(0, TAGS, count) for count in rng.integers(0, 6, PER_DAY)]
        taste = np.array([of_tag[each].mean() if len(each) else 0.0 for each in tags])
        odds = of_site[site] + of_user[user] + 2 * taste - (age - 45) / 30 - 0.5
        today = FIRST + datetime.timedelta(day)
        table = {
            "site": pa.array([f"site-{number}" for number in site]),
            "user": pa.array([f"user-{number}" for number in user]),
            "age": pa.array(age, mask=rng.random(PER_DAY) < 0.1),
            "since": pa.array(
                [today - datetime.timedelta(int(days)) for days in rng.integers(0, 900, PER_DAY)]
            ),
            "price": pa.array(rng.integers(0, 10_000, PER_DAY)).cast(pa.decimal128(21, 2)),
            "tags": pa.array([[f"tag-{number}" for number in each] for each in tags]),
            "click": pa.array((rng.random(PER_DAY) < 1 / (1 + np.exp(-odds))).astype(np.int32)),
        }
        part = folder / f"date={today}"
        part.mkdir(parents=True)
        pq.write_table(pa.table(table), part / "000000_0", row_group_size=1000)
        (part / "_SUCCESS").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "data" / "clicks"))
