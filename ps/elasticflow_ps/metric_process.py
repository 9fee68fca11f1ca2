"""Values of metrics that are a library's objects, computed in a process beside the first server.

The import of such a library, and of its framework, takes seconds of a processor in which nothing else of a
process runs. A server that did it itself would be silent meanwhile, and on a busy machine be given up, and
the next one too. Here it goes on while the first steps are made. What the library prints is in the server's
log.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe

import msgspec
import numpy as np

from elasticflow.errors import ProgramError, RunError
from elasticflow.process.decoding import from_msgpack
from elasticflow.process.parent import die_with_parent
from elasticflow.training.metrics import Sums
from elasticflow.training.objects import ComputeError, ObjectMetric, computed, prepare

TRIES = 2
"""A process that ends while it computes may have been ended from outside."""
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Of its environment: the processors are the workers', and sums of one thread have one order."""


class MetricOrder(msgspec.Struct, frozen=True):
    """Compute the value of a metric. sums: float64, over all slices."""

    metric: ObjectMetric
    sums: bytes


class MetricValue(msgspec.Struct, frozen=True):
    """problem: what the library raised instead. broken: why nothing can be computed here."""

    values: list[float] = []
    problem: str = ""
    broken: str = ""


class MetricProcess:
    """Begins to import what these metrics need. Raises ProgramError if that is not installed here."""

    def __init__(self, metrics: tuple[ObjectMetric, ...]) -> None:
        self._metrics = metrics
        for library in sorted({metric.library for metric in self._metrics}):
            if importlib.util.find_spec(library) is None:
                raise ProgramError(
                    f"metrics() has a metric of {library}, which the first server computes, where it is not "
                    f"installed. Install {library} wherever servers run, or use ef.metrics."
                )
        self._begin()

    def value(self, metric: ObjectMetric, sums: Sums) -> list[float]:
        """Its value, flat, from the sums over all. Waits for it.

        Raises ComputeError; ProgramError if the library cannot be used here; RunError if the process ends
        again and again.
        """
        order = msgspec.msgpack.encode(MetricOrder(metric, sums.tobytes()))
        for _ in range(TRIES):
            try:
                self._pipe.send_bytes(order)
                told = from_msgpack(self._pipe.recv_bytes(), MetricValue)
            except (EOFError, OSError):
                self.close()
                self._begin()
                continue
            if told.broken:
                raise ProgramError(told.broken)
            if told.problem:
                raise ComputeError(told.problem)
            return told.values
        raise RunError(
            f"the process that computes metrics of {metric.library} ended {TRIES} times while it did; the "
            "log of this server has its words, if there were any. It may have had no memory left."
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """Ends it."""
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def _begin(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ALONE},
            )
        with suppress(OSError):  # if it has ended the first order will show it
            self._pipe.send_bytes(msgspec.msgpack.encode(self._metrics))


@lru_cache(maxsize=1)
def process_for(metrics: tuple[ObjectMetric, ...]) -> MetricProcess:
    """One for a server's whole life, however often its servers begin anew."""
    return MetricProcess(metrics)


def main(parent: int, fd: int) -> None:
    """Imports what is needed, and does what is ordered, as long as somebody may order something."""
    die_with_parent(parent)
    with Connection(fd) as pipe, suppress(EOFError):
        broken = ""
        try:
            prepare(from_msgpack(pipe.recv_bytes(), tuple[ObjectMetric, ...]))
        except ProgramError as error:
            broken = str(error)
        while True:
            order = from_msgpack(pipe.recv_bytes(), MetricOrder)
            pipe.send_bytes(msgspec.msgpack.encode(MetricValue(broken=broken) if broken else _value(order)))


def _value(order: MetricOrder) -> MetricValue:
    try:
        return MetricValue(computed(order.metric, np.frombuffer(order.sums, np.float64)))
    except ComputeError as error:
        return MetricValue(problem=str(error))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
