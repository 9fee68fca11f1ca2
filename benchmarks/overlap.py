"""A step whose communication takes as long as its computing, over the longer of the two alone.

What a step costs all processes in CPU, shared by the processors there are, is what no overlap gets below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from benchmarks.cases import Case
from benchmarks.crowd import a_step, server_pid, watch
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import APART, TCP, Job, exchange_seconds, job, step_seconds

ROUNDS = 3
WARM_UP = 4
TRIES = 4
CLOSE = 1.1
"""Computing and communication are as long as each other if they are so within this factor."""
LAYERS = Case("8 layers, 34 MB", (1024,) * 9, 1, 32, 80)
COMMAND = "python -m benchmarks overlap"

Settings = Mapping[str, object]


class Alone(NamedTuple):
    """Seconds of a step in which one comes after the other."""

    computing_s: float
    exchange_s: float


def _apart(case: Case, settings: Settings) -> Alone:
    with _job(case, {**settings, **APART}) as one:
        one.wait()
        timeline = one.only_timeline()
    computing = [i.seconds for i in timeline if i.what == "computing" and i.tick >= WARM_UP]
    exchange = [s for tick, s in exchange_seconds({"": timeline}).items() if tick >= WARM_UP]
    return Alone(median(computing), median(exchange))


def _together_s(case: Case, settings: Settings) -> float:
    """Seconds of a step as users have it."""
    with _job(case, settings) as one:
        one.wait()
        timeline = one.only_timeline()
    return median(step_seconds(timeline)[WARM_UP:])


def _cpu_ms(case: Case, settings: Settings) -> float:
    """Of worker and server, a step as users have it."""
    with _job(case._replace(steps=10**6), settings) as one:
        status = one.wait_until(1)
        (worker,) = status.workers
        watched = watch({"worker": worker.pid, "server": server_pid(status)})
        one.ask("stop")
        one.wait()
        timeline = one.only_timeline()
    return sum(a_step(watched, timeline).cpu_ms.values())


def _job(case: Case, settings: Settings) -> AbstractContextManager[Job]:
    return job(case, "--workers", 1, "--servers", 1, "--checkpoint-every", "24h", settings=settings)


def _balanced(case: Case, settings: Settings) -> Case:
    """The case with as many records as make both equally long: what records cost decides, so it is tried."""
    for _ in range(TRIES):
        alone = _apart(case, settings)
        factor = alone.exchange_s / alone.computing_s
        if 1 / CLOSE < factor < CLOSE:
            break
        case = case._replace(slice_records=max(1, round(case.slice_records * factor)))
    return case


def run() -> Iterator[Figure]:
    """Over TCP and through shared memory, each in turns with and without overlap."""
    for way, settings in (("TCP", TCP), ("shared memory", {})):
        case = _balanced(LAYERS, settings)
        alone, together = [], []
        for _ in range(ROUNDS):
            alone.append(_apart(case, settings))
            together.append(_together_s(case, settings))
        computing_ms = 1000 * median([each.computing_s for each in alone])
        exchange_ms = 1000 * median([each.exchange_s for each in alone])
        processors = len(os.sched_getaffinity(0))
        note = (
            f"{case.slice_records} records: computes {computing_ms:.1f} ms, exchanges {exchange_ms:.1f} ms; "
            f"{_cpu_ms(case, settings):.1f} ms of CPU on {processors} processors"
        )
        name = f"{case.name}, {way}: step / the longer of its parts"
        longer_ms = max(computing_ms, exchange_ms)
        yield figure(name, 1000 * median(together), "ms", longer_ms, COMMAND, note)
