"""Lookup and update of 4,096 zipf-distributed ids in a large table, over TCP, against moving the same bytes.

The limit is what plain sockets in C take for the bytes of the distinct rows and their keys, and
torch.index_select for gathering these rows from a tensor of the table's size. What ZeroMQ alone takes for
these bytes is told beside it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import wire, zeromq
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import APART, TCP, exchange_seconds, job

PROGRAM = Path(__file__).parent / "programs" / "rows.py"
ROUNDS = 3
STEPS, WARM_UP = 400, 40
FILL = 250_000
IDS, ZIPF = 4096, 1.1
ACKNOWLEDGED_BYTES = 64
COMMAND = "python -m benchmarks sparse"


class Sparse(NamedTuple):
    """A table of ``rows`` rows of ``dim`` numbers, and one lookup a step.

    computed: by ids that forward() makes, which nobody can ask for before.
    """

    rows: int
    dim: int
    computed: bool = False
    file: str = ""
    slices: int = 1
    batch_size: int = 1

    @property
    def fill_steps(self) -> int:
        return self.rows // FILL

    @property
    def steps(self) -> int:
        return -(-(self.fill_steps + STEPS) // 8) * 8

    def environment(self) -> dict[str, str]:
        """For ``programs/rows.py``."""
        sizes = {"rows": self.rows, "dim": self.dim, "fill": FILL, "ids": IDS, "zipf": ZIPF}
        known = {"records": self.steps, "computed": self.computed, "file": self.file}
        return {"BENCH": json.dumps({**sizes, **known})}


class Many(NamedTuple):
    """Many tables; a slice looks up a column in each. computed: by ids that forward() makes of it."""

    computed: bool
    slices: int = 1
    batch_size: int = 512
    steps: int = 240
    tables: int = 26

    def environment(self) -> dict[str, str]:
        """For ``programs/columns.py``."""
        records = 8 * self.batch_size
        known = {"tables": self.tables, "dim": 16, "records": records, "computed": self.computed}
        return {"BENCH": json.dumps(known)}


class Costs(NamedTuple):
    """Median seconds of a lookup, and of push, update and word of the next version."""

    read_s: float
    push_s: float


def measure(case: Sparse) -> Costs:
    """Those of a job of one worker and one server."""
    with tempfile.TemporaryDirectory() as folder:
        case = case._replace(file=str(Path(folder) / "seconds"))
        members = ("--workers", 1, "--servers", 1, "--checkpoint-every", "24h", "--epochs", 1)
        with job(case, *members, program=PROGRAM, settings={**TCP, **APART}) as one:
            one.wait()
            pushes = exchange_seconds(one.timelines())
        reads = [float(line) for line in Path(case.file).read_text().split()]
    first = case.fill_steps + WARM_UP
    return Costs(median(reads[WARM_UP:]), median([s for tick, s in pushes.items() if tick >= first]))


def distinct(rows: int) -> int:
    """How many of a lookup's ids are distinct, as a rule."""
    draws = [np.random.default_rng(seed).zipf(ZIPF, IDS) % rows for seed in range(9)]
    return int(median([float(len(np.unique(draw))) for draw in draws]))


def gather_s(rows: int, dim: int, count: int) -> float:
    """Seconds of torch to gather so many rows of a tensor into memory that is there."""
    table, out = torch.ones(rows, dim), torch.empty(count, dim)
    seconds = []
    for number in range(STEPS):
        generator = np.random.default_rng(number)
        ids = torch.from_numpy(np.unique(generator.zipf(ZIPF, 2 * IDS) % rows)[:count])
        since_s = time.perf_counter()
        torch.index_select(table, 0, ids, out=out)
        seconds.append(time.perf_counter() - since_s)
    return median(seconds[WARM_UP:])


def against_limit(rows: int, dim: int) -> Iterator[Figure]:
    """In turns: sockets, gathering, and the job."""
    count = distinct(rows)
    keys, values = 8 * count, 4 * dim * count
    costs: dict[bool, list[Costs]] = {False: [], True: []}
    reads, pushes, alone = [], [], []
    for _ in range(ROUNDS):
        gathered_s = gather_s(rows, dim, count)
        reads.append(gathered_s + median(wire.round_seconds(keys, STEPS, values)[WARM_UP:]))
        moved = wire.round_seconds(keys + values, STEPS, ACKNOWLEDGED_BYTES)[WARM_UP:]
        pushes.append(gathered_s + median(moved))
        alone.append(
            (
                median(zeromq.round_seconds(keys, STEPS, values)[WARM_UP:]),
                median(zeromq.round_seconds(keys + values, STEPS, ACKNOWLEDGED_BYTES)[WARM_UP:]),
            )
        )
        for computed, measured in costs.items():
            measured.append(measure(Sparse(rows, dim, computed)))
    pulls, acknowledged = zip(*alone, strict=True)
    known, unknown = costs[False], costs[True]
    for what, seconds, limit, queues in (
        ("pull of a column", [each.read_s for each in known], reads, pulls),
        ("pull of computed ids", [each.read_s for each in unknown], reads, pulls),
        ("push", [each.push_s for each in known], pushes, acknowledged),
    ):
        note = (
            f"{1e6 * median(seconds):.0f} us for {IDS} ids, {count} of them distinct; ZeroMQ alone "
            f"{1e6 * median(queues):.0f} us"
        )
        name = f"{what}, {rows / 1e6:.0f} million rows of {dim} / sockets and gathering"
        rate, most = IDS / 1e6 / median(seconds), IDS / 1e6 / median(limit)
        yield figure(name, rate, "million ids/s", most, COMMAND, note)


def computing_s(case: Many) -> float:
    """Median seconds that a slice takes, the waiting for rows included."""
    members = ("--workers", 1, "--servers", 1, "--checkpoint-every", "24h")
    program = PROGRAM.with_name("columns.py")
    with job(case, *members, program=program, settings={**TCP, **APART}) as one:
        one.wait()
        timeline = one.only_timeline()
    return median([i.seconds for i in timeline if i.what == "computing" and i.tick >= WARM_UP])


def of_many_tables() -> Iterator[Figure]:
    """What it brings to ask for all columns at once."""
    ahead, in_turn = [], []
    for _ in range(ROUNDS):
        ahead.append(1000 * computing_s(Many(computed=False)))
        in_turn.append(1000 * computing_s(Many(computed=True)))
    case = Many(computed=False)
    name = f"slice of {case.batch_size} records with {case.tables} tables: asked for at once / one by one"
    yield figure(name, median(ahead), "ms", median(in_turn), COMMAND)


def run() -> Iterator[Figure]:
    """Dim 16, and then dim 64; then many tables."""
    for dim in (16, 64):
        yield from against_limit(10_000_000, dim)
    yield from of_many_tables()
