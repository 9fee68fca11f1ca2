"""ps-lite beside our parameter server, in turns: ``python -m benchmarks peers --ps-lite CHECKOUT``.

The checkout is of github.com/dmlc/ps-lite; what else is needed ``benchmarks.ps_lite`` says. One worker and
one server by TCP over the loopback. Ours is a whole job, with snapshots, seals and checks, and its worker's
time is that from a gradient to the next version; ps-lite's worker does nothing else. Ratios are speeds, ours
over ps-lite's: above 1 ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import wire
from benchmarks.crowd import a_step, server_pid, watch
from benchmarks.dense import FLATS, PROGRAM, WARM_UP, Flat, exchange
from benchmarks.figures import Figure, figure, line, median
from benchmarks.jobs import APART, TCP, job
from benchmarks.ps_lite import PsLite, built
from benchmarks.sparse import IDS, STEPS, ZIPF, Costs, Sparse, measure

COMMAND = "python -m benchmarks peers --ps-lite CHECKOUT"
ROUNDS = 3
ROWS, DIM = 10_000_000, 16


def _ms(seconds: Sequence[float]) -> str:
    """Median, and what the rounds lie between."""
    low, middle, high = (1000 * each for each in (min(seconds), median(seconds), max(seconds)))
    return f"{middle:.2f} ms ({low:.2f} to {high:.2f})"


def exchange_cpu_s(flat: Flat) -> float:
    """CPU seconds of worker and server for a step's push, update and pull: all but the computing."""
    members = ("--workers", 1, "--servers", 1, "--checkpoint-every", "24h")
    case = flat._replace(steps=10**6)
    with job(case, *members, program=PROGRAM, settings={**TCP, **APART}) as one:
        status = one.wait_until(1)
        watched = watch({"worker": status.workers[0].pid, "server": server_pid(status)})
        one.ask("stop")
        one.wait()
        timeline = one.only_timeline()
    computing_s = median([each.seconds for each in timeline if each.what == "computing"])
    return sum(a_step(watched, timeline).cpu_ms.values()) / 1000 - computing_s


def dense(peer: PsLite, flat: Flat, rounds: int = ROUNDS) -> Figure:
    """Push, SGD and pull of one tensor; CPU, and plain sockets, a connection each way, are in the note."""
    ours, theirs, plain, cpu_s = [], [], [], []
    for _ in range(rounds):
        ours.append(exchange(flat, TCP).median_s)
        measured = peer.dense(flat.num_bytes, flat.steps)
        theirs.append(median(measured.seconds[WARM_UP:]))
        cpu_s.append(measured.cpu_s / (2 * flat.num_bytes * flat.steps / 1e9))
        plain.append(median(wire.round_seconds(flat.num_bytes, flat.steps)[WARM_UP:]))
    gigabytes = 2 * flat.num_bytes / 1e9
    of_sockets = median(plain) / median(ours)
    note = (
        f"{_ms(ours)}, {exchange_cpu_s(flat) / gigabytes:.2f} CPU s a GB; ps-lite {_ms(theirs)}, "
        f"{median(cpu_s):.2f} CPU s a GB; sockets {_ms(plain)}, {of_sockets:.2f} of their speed"
    )
    reference = gigabytes / median(theirs)
    return figure(f"dense, {flat.name} / ps-lite", gigabytes / median(ours), "GB/s", reference, COMMAND, note)


def drawn(rounds: int) -> list[np.ndarray]:
    """The distinct ids of so many lookups."""
    draws = np.random.default_rng(0).zipf(ZIPF, (rounds, IDS)) % ROWS
    return [np.unique(draw) for draw in draws]


def sparse(peer: PsLite, rounds: int = ROUNDS) -> Iterator[Figure]:
    """Rows of a large table, beside both tables that one would build with ps-lite."""
    lookups = drawn(STEPS)
    ours: dict[bool, list[Costs]] = {False: [], True: []}
    theirs: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for computed, costs in ours.items():
            costs.append(measure(Sparse(ROWS, DIM, computed)))
        for what in ("pull", "push"):
            for table in ("array", "hashed"):
                seconds = peer.rows(what, table, ROWS, DIM, lookups).seconds
                theirs.setdefault((what, table), []).append(median(seconds[WARM_UP:]))
    rows: dict[str, tuple[str, list[float]]] = {
        "pull of computed ids": ("pull", [each.read_s for each in ours[True]]),
        "push of computed ids": ("push", [each.push_s for each in ours[True]]),
        "push of a column": ("push", [each.push_s for each in ours[False]]),
    }
    for name, (what, seconds) in rows.items():
        for table, words in (("array", "row numbers"), ("hashed", "a map")):
            other = theirs[what, table]
            note = f"{_ms(seconds)}; ps-lite {_ms(other)}"
            rate, reference = IDS / 1e6 / median(seconds), IDS / 1e6 / median(other)
            yield figure(f"{name} / ps-lite by {words}", rate, "million ids/s", reference, COMMAND, note)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--ps-lite", type=Path, required=True, metavar="CHECKOUT", help="its sources")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns (default: {ROUNDS})")
    parser.add_argument("--only", choices=("dense", "sparse"), help="one part")
    options = parser.parse_args(argv)
    with built(options.ps_lite.resolve()) as peer:
        for flat in FLATS[:3] if options.only != "sparse" else ():
            print(line(dense(peer, flat, options.rounds)), flush=True)
        for one in sparse(peer, options.rounds) if options.only != "dense" else ():
            print(line(one), flush=True)
    return 0


def run() -> Iterator[Figure]:
    """Nothing without ps-lite's sources: see ``main``."""
    print(f"{COMMAND}: a checkout of github.com/dmlc/ps-lite is needed")
    yield from ()
