"""Parquet: shuffled slices of typed columns, as a worker reads them, beside ``pyarrow.dataset``'s batches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.figures import Figure, figure, median
from elasticflow.data import Pad, Parquet, Source

DAYS, DAY_ROWS, GROUP_ROWS = 2, 500_000, 100_000
STEP_RECORDS, SLICES = 8192, 8
SITES, USERS = 5_000, 200_000
ROUNDS = 7
COMMAND = "python -m benchmarks parquet"
SITE_NAMES = [f"site-{number}" for number in range(SITES)]


def _write(folder: Path) -> None:
    """A table as Hive leaves it: a folder a day; texts, moments, decimals, lists and missing values."""
    chance = np.random.default_rng(0)
    for day in range(DAYS):
        rows = DAY_ROWS
        ends = np.sort(chance.integers(0, 3 * rows, rows - 1))
        starts = np.concatenate([[0], ends, [3 * rows]]).astype(np.int32)
        tags = pa.ListArray.from_arrays(starts, chance.integers(0, 100, 3 * rows))
        table = {
            "site": pa.array(SITE_NAMES).take(pa.array(chance.integers(0, SITES, rows))),
            "user": pa.array([f"user-{number}" for number in chance.integers(0, USERS, rows)]),
            "moment": pa.array(chance.integers(0, 86_400 * 10**6, rows), pa.timestamp("us")),
            "born": pa.array(chance.integers(0, 20_000, rows).astype(np.int32), pa.date32()),
            "price": pa.array(chance.integers(0, 10**6, rows)).cast(pa.decimal128(21, 2)),
            "age": pa.array(chance.integers(0, 90, rows), mask=chance.random(rows) < 0.1),
            "score": chance.random(rows),
            "tags": tags,
            "y": chance.integers(0, 2, rows),
        }
        path = folder / f"date=2026-11-{20 + day}"
        path.mkdir()
        pq.write_table(pa.table(table), path / "000000_0", row_group_size=GROUP_ROWS)


def _open(folder: Path) -> Source:
    return Parquet(
        folder,
        vocabularies={"site": SITE_NAMES},
        hashing={"user": None},
        defaults={"age": 0},
        pad={"tags": Pad()},
    )


def _ours_s(source: Source, seed: int) -> float:
    """Seconds of an epoch: records in shuffled order, cut into slices, as arrays."""
    since_s = time.perf_counter()
    order, per_slice = source.shuffle(seed), STEP_RECORDS // SLICES
    for start in range(0, source.num_rows, STEP_RECORDS):
        rows = order.rows(0, start, min(start + STEP_RECORDS, source.num_rows))
        fields = source.drawn(rows, seed)
        source.prefetch(order.next_window(0, start))
        for first in range(0, len(rows), per_slice):
            last = min(first + per_slice, len(rows))
            source.finish({name: field[first:last] for name, field in fields.items()}, seed)
    return time.perf_counter() - since_s


def _theirs_s(folder: Path, use_threads: bool) -> float:
    """Seconds of all of pyarrow's batches, as large as slices, in the files' order, as Arrow has them."""
    since_s = time.perf_counter()
    rows = 0
    for batch in ds.dataset(folder, partitioning="hive").to_batches(
        batch_size=STEP_RECORDS // SLICES, use_threads=use_threads
    ):
        rows += batch.num_rows
    assert rows == DAYS * DAY_ROWS
    return time.perf_counter() - since_s


def run() -> Iterator[Figure]:
    """Medians, in turns, of one process; all is in the page cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder)
        ours, alone, threads = list[float](), list[float](), list[float]()
        processors: list[tuple[float, float]] = []
        for seed in range(ROUNDS):
            ours.append(_ours_s(_open(folder), seed))
            alone.append(_theirs_s(folder, False))
            threads.append(_theirs_s(folder, True))
            begun_s = time.process_time()
            _ours_s(_open(folder), seed)
            middle_s = time.process_time()
            _theirs_s(folder, True)
            processors.append((middle_s - begun_s, time.process_time() - middle_s))
        records = DAYS * DAY_ROWS / 1e6
        rate = records / median(ours)
        note = f"10 columns, {DAYS * DAY_ROWS:,} records; gathered in one thread"
        yield figure(
            "Parquet, beside batches in one thread", rate, "M/s", records / median(alone), COMMAND, note
        )
        yield figure(
            "Parquet, beside batches in threads", rate, "M/s", records / median(threads), COMMAND, note
        )
        mine, others = (median([pair[number] for pair in processors]) for number in (0, 1))
        yield figure(
            "Parquet, records a second of a processor", records / mine, "M/s", records / others, COMMAND, note
        )
