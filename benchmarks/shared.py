"""Push, update and pull of 100 MB through shared memory, against memcpy of the same bytes and TCP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.dense import HUNDRED, exchange, rate
from benchmarks.figures import Figure, median
from benchmarks.jobs import TCP

ROUNDS = 3
COPIES = 20
COMMAND = "python -m benchmarks shared"


def _copy_s(num_bytes: int) -> float:
    """Seconds of one process to copy so many bytes into memory that is there."""
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    seconds = []
    for _ in range(COPIES):
        since_s = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - since_s)
    return median(seconds)


def run() -> Iterator[Figure]:
    """In turns: memcpy, TCP, shared memory. One worker, one server, snapshots in memory as by default."""
    copies, tcp, shared = [], [], []
    for _ in range(ROUNDS):
        copies.append(_copy_s(2 * HUNDRED.num_bytes))
        tcp.append(exchange(HUNDRED, TCP))
        shared.append(exchange(HUNDRED, {}))
    yield rate("100 MB, shared memory / memcpy", HUNDRED, shared, copies, COMMAND)
    tcp_s = [each.median_s for each in tcp]
    yield rate("100 MB, shared memory / TCP", HUNDRED, shared, tcp_s, COMMAND)
