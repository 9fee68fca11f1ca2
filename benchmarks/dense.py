"""Push, update and pull of dense parameters over TCP, against plain sockets in C that move the same bytes.

Snapshots in memory are on, as they are by default, where a line does not say otherwise. Most steps have
none, so the medians do not show what one costs; the means, in the notes, do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks import wire
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import APART, TCP, exchange_seconds, job

PROGRAM = Path(__file__).parent / "programs" / "flat.py"
ROUNDS = 3
WARM_UP = 4
COMMAND = "python -m benchmarks dense"


class Flat(NamedTuple):
    """``tensors`` tensors of ``elements`` float32 numbers each, and one record a slice."""

    name: str
    tensors: int
    elements: int
    steps: int
    slices: int = 1

    @property
    def batch_size(self) -> int:
        return self.slices

    @property
    def num_bytes(self) -> int:
        return 4 * self.tensors * self.elements

    def environment(self) -> dict[str, str]:
        """For ``programs/flat.py``."""
        sizes = {"tensors": self.tensors, "elements": self.elements}
        return {"BENCH": json.dumps({**sizes, "records": 8 * self.batch_size})}


HUNDRED = Flat("100 MB", 1, 25_000_000, 48)
FLATS = (
    Flat("1 MB", 1, 250_000, 800),
    Flat("10 MB", 1, 2_500_000, 200),
    HUNDRED,
    Flat("1 GB", 1, 250_000_000, 16),
    Flat("10 MB in 1,000 tensors", 1_000, 2_500, 200),
)


class Exchange(NamedTuple):
    """Seconds of push, update and pull in a step."""

    median_s: float
    mean_s: float


def exchange(flat: Flat, settings: Mapping[str, object], *options: object, pairs: int = 1) -> Exchange:
    """Those of a job of so many workers, with a slice each, and as many servers."""
    case = flat._replace(slices=pairs)
    members = ("--workers", pairs, "--servers", pairs, "--checkpoint-every", "24h")
    with job(case, *members, *options, program=PROGRAM, settings={**settings, **APART}) as one:
        one.wait()
        seconds = [s for tick, s in exchange_seconds(one.timelines()).items() if tick >= WARM_UP]
    return Exchange(median(seconds), fmean(seconds))


def rate(name: str, flat: Flat, ours: list[Exchange], reference_s: list[float], command: str) -> Figure:
    """GB/s of one worker, push and pull together, over those of the reference."""
    gigabytes = 2 * flat.num_bytes / 1e9
    ours_s, mean_s = median([each.median_s for each in ours]), median([each.mean_s for each in ours])
    note = f"{1000 * ours_s:.1f} ms, mean {1000 * mean_s:.1f} ms"
    return figure(name, gigabytes / ours_s, "GB/s", gigabytes / median(reference_s), command, note)


def _against_sockets(flat: Flat, what: str = "", *options: object) -> Figure:
    """In turns, one worker and one server."""
    plain, ours = [], []
    for _ in range(ROUNDS):
        plain.append(median(wire.round_seconds(flat.num_bytes, flat.steps)[WARM_UP:]))
        ours.append(exchange(flat, TCP, *options))
    return rate(f"{flat.name}{what} / plain sockets", flat, ours, plain, COMMAND)


def _two_pairs(flat: Flat) -> Figure:
    """In turns with one pair. Each worker moves as much as the only one does."""
    one, two = [], []
    for _ in range(ROUNDS):
        one.append(exchange(flat, TCP).median_s)
        two.append(exchange(flat, TCP, pairs=2).median_s)
    gigabytes, note = 2 * flat.num_bytes / 1e9, f"{1000 * median(two):.1f} ms"
    name = f"{flat.name}: 2 workers, 2 servers, in all / one pair"
    return figure(name, 2 * gigabytes / median(two), "GB/s", gigabytes / median(one), COMMAND, note)


def run() -> Iterator[Figure]:
    """Each model, then 100 MB without snapshots, and with two workers and two servers."""
    for flat in FLATS:
        yield _against_sockets(flat)
    yield _against_sockets(HUNDRED, " without snapshots", "--snapshot-s", 0)
    yield _two_pairs(HUNDRED)
