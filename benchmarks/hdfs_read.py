"""HDFS: shuffled slices of Parquet files beside plain reading of the same files by the ``hdfs`` package."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import hdfs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, figure, median
from elasticflow.data import Parquet, Sources
from elasticflow.frameworks import Replica
from elasticflow.step.schedule import Kind, Schedule
from elasticflow.worker.batches import Batches
from tests.clusters.hadoop import HadoopCluster

FILES, GROUPS, GROUP_ROWS, FEATURES = 6, 4, 64 << 10, 64
ROUNDS = 5
BATCH, SLICES = 1024, 8
COMMAND = "python -m benchmarks hdfs_read"
NAMES = [f"f{number}" for number in range(FEATURES)]


def _write(folder: Path) -> int:
    """Files of noise and labels, as pyarrow writes them; returns their bytes."""
    chance = np.random.default_rng(0)
    rows = GROUPS * GROUP_ROWS
    for number in range(FILES):
        table = {name: chance.standard_normal(rows, np.float32) for name in NAMES}
        labels = chance.integers(0, 10, rows)
        path = folder / f"part-{number}.parquet"
        pq.write_table(pa.table({**table, "label": labels}), path, row_group_size=GROUP_ROWS)
    return sum(path.stat().st_size for path in folder.iterdir())


def _plain_s(client: hdfs.Client, folder: str) -> float:
    """Seconds of reading all files from front to back."""
    since_s = time.perf_counter()
    for name in client.list(folder):
        with client.read(f"{folder}/{name}", chunk_size=1 << 20) as chunks:
            for _ in chunks:
                pass
    return time.perf_counter() - since_s


def _shuffled_s(where: str, seed: int) -> float:
    """Seconds of an epoch of slices as a worker reads them, from opening the source on."""
    since_s = time.perf_counter()
    source = Parquet(f"{where}/*.parquet", x=NAMES, y="label")
    schedule = Schedule(
        num_records=source.num_rows, num_test=0, batch_size=BATCH, num_slices=SLICES, epochs=1
    )
    batches = Batches(schedule, Sources(source), seed, {"x": "x", "y": "y"}, cast(Replica, _Nothing))
    for tick in range(schedule.total_ticks):
        work = schedule.at(tick)
        if work.kind is Kind.TRAIN:
            batches.fetch(work, range(SLICES))
            for number in range(SLICES):
                batches.train(work, number)
    return time.perf_counter() - since_s


class _Nothing:
    """Computes nothing on the records."""

    @staticmethod
    def prepare(columns: dict[str, Any]) -> dict[str, Any]:
        """As they are."""
        return columns


def run() -> Iterator[Figure]:
    """Medians, in turns. Two DataNodes on this machine, replication 2; everything is in the page cache."""
    with (
        tempfile.TemporaryDirectory(prefix="elasticflow-") as temporary,
        HadoopCluster(yarn=False) as cluster,
    ):
        os.environ.update(cluster.environment)
        folder, target = Path(temporary), f"/user/{cluster.user}/benchmark"
        megabytes = _write(folder) / 1e6
        client = hdfs.InsecureClient(cluster.namenode_url, user=cluster.user)
        client.makedirs(target)
        for path in folder.iterdir():
            client.upload(f"{target}/{path.name}", str(path))
        plain, local, remote = [], [], []
        for epoch in range(1 + ROUNDS):
            plain.append(_plain_s(client, target))
            local.append(_shuffled_s(str(folder), epoch))
            remote.append(_shuffled_s(cluster.hdfs_url + target, epoch))
    reference = megabytes / median(plain[1:])
    group_megabytes = megabytes / FILES / GROUPS
    note = f"{megabytes:.0f} MB, row groups of {group_megabytes:.0f} MB, batches of {BATCH} records"
    yield figure(
        "shuffled slices from HDFS / plain reading",
        megabytes / median(remote[1:]),
        "MB/s",
        reference,
        COMMAND,
        note,
    )
    yield figure(
        "the same slices from local files / plain reading from HDFS",
        megabytes / median(local[1:]),
        "MB/s",
        reference,
        COMMAND,
        "decoding and gathering alone",
    )
