"""Threads that wait for a remote medium, so that whoever computes does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

NUM_THREADS = 4
"""More read no faster from two DataNodes; fewer do not hide a request's latency."""

_pools: dict[int, ThreadPoolExecutor] = {}


def submit(act: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Does this in a thread. The threads start with the first call in a process: a fork takes none along."""
    pid = os.getpid()
    if pid not in _pools:
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="read")
    return _pools[pid].submit(act, item)


def map_ahead(
    act: Callable[[Item], Result], items: Iterable[Item], most: int = 2 * NUM_THREADS
) -> Iterator[Result]:
    """As ``map``, in threads: while one result is in use, up to ``most`` later ones are being made."""
    source = iter(items)
    under_way = [submit(act, item) for item in islice(source, most)]
    try:
        while under_way:
            result = under_way.pop(0).result()
            under_way.extend(submit(act, item) for item in islice(source, 1))
            yield result
    finally:
        for future in under_way:
            future.cancel()
