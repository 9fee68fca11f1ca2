"""The most deadline jobs that any scheduler could finish in time on a trace: a linear program, by HiGHS.

All arrivals are known beforehand, a change of a job's GPUs costs nothing, and GPUs can be cut as finely as
one likes. A job may be taken in part: ``z`` of it is worth ``z``, needs ``z`` of its iterations, and may
then use no more than ``z`` of the GPUs that the whole job could use at any moment. A job's rate is the
concave envelope of its profile, so a schedule that goes back and forth between two sizes is allowed too.
Every real schedule is one of these, so no real schedule does better; since jobs are whole, the number is
rounded down.

    python -m benchmarks fluid                    the traces of the table
    python -m benchmarks.fluid TRACE --gpus N     one trace, the price of GPUs over time, and who is left out
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, figure
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.overheads import Overheads, published
from elasticflow.scheduler.traces import find_profiles, read_trace

Floats = NDArray[np.float64]
TRACES = Path(__file__).parent / "data" / "scheduler" / "traces"
TABLE = (
    ("195job", 128),
    ("elasticVpollux_e", 64),
    ("195job", 64),
    ("195job", 32),
    ("cluster06", 512),
    ("cluster10", 256),
    ("cluster01", 512),
    ("cluster05", 512),
)
FREE = Overheads(same_s=0.0, base_s=0.0, step_s=0.0)
ROUNDING = 1e-6
"""Jobs by which the solver's answer may be wrong."""


@dataclass(frozen=True)
class Demand:
    """A deadline job as the bound sees it. sizes, rates: corners of the concave envelope, from (0, 0) on.

    start_s: from when on it can do iterations. is_possible: with the cluster to itself.
    """

    name: str
    start_s: float
    deadline_s: float
    iterations: float
    sizes: tuple[float, ...]
    rates: tuple[float, ...]
    is_possible: bool

    @property
    def even_gpus(self) -> float:
        """Fewest GPUs with which it is done just in time, if it has them from its arrival on."""
        return self.gpus_for(self.iterations / (self.deadline_s - self.start_s))

    def gpus_for(self, rate: float) -> float:
        """Fewest GPUs for a rate that it can reach."""
        return float(np.interp(rate, self.rates, self.sizes))


@dataclass(frozen=True)
class Bound:
    """The answer. num_possible: jobs that are possible by themselves. served: by job, how much of it the
    optimum takes, from 0 to 1.

    edges_s: ends of the intervals, one more than prices. prices: jobs that one more GPU-second is worth.
    num_in_program: so many jobs had to go into the linear program.
    """

    num_jobs: int
    num_possible: int
    jobs: float
    whole_jobs: int
    served: dict[str, float]
    edges_s: Floats
    prices: Floats
    seconds: float
    num_in_program: int

    @property
    def ratio(self) -> float:
        """The bound on the deadline satisfactory ratio."""
        return self.whole_jobs / self.num_jobs


def demands_of(jobs: Iterable[Job], num_gpus: int, cost: Overheads = FREE) -> list[Demand]:
    """The deadline jobs of a trace. cost: of their start, which no job is spared."""
    return [_demand(job, job.deadline_s, num_gpus, cost) for job in jobs if job.deadline_s is not None]


def _demand(job: Job, deadline_s: float, num_gpus: int, cost: Overheads) -> Demand:
    """Alone, a job does best on one size from its arrival on; iterations begin after ``move_s`` of a size."""
    sizes = [size for size in job.curve.sizes if size <= num_gpus]
    corners = envelope([(size, job.curve.rate(size)) for size in sizes])
    left_s = deadline_s - job.submit_s
    done = [job.curve.rate(size) * (left_s - cost.move_s(size)) for size in sizes]
    start_s = job.submit_s + min(map(cost.move_s, sizes), default=0.0)
    is_possible = max(done, default=0.0) >= job.iterations
    return Demand(job.job_id, start_s, deadline_s, job.iterations, *corners, is_possible)


def envelope(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """GPUs and iterations/s at the corners of the concave envelope, from (0, 0) to the fastest size."""
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for size, rate in sorted(points):
        if rate <= corners[-1][1]:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], (size, rate)):
            corners.pop()
        corners.append((float(size), rate))
    sizes, rates = zip(*corners, strict=True)
    return sizes, rates


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


# --- what need not go into the program ------------------------------------------------------------


@dataclass
class _Rest:
    """Jobs that compete, and what is left of each. first, stop: a job's intervals; tight: those in which
    the jobs could use more GPUs than there are. In all others each job runs as fast as it can."""

    demands: list[Demand]
    edges_s: Floats
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    tight: NDArray[np.bool_]
    free: Floats
    """Iterations that each job gets done outside of the tight intervals."""

    @property
    def lengths_s(self) -> Floats:
        return np.diff(self.edges_s)

    def cells(self, job: int) -> NDArray[np.int64]:
        """The tight intervals of a job."""
        return np.arange(self.first[job], self.stop[job])[self.tight[self.first[job] : self.stop[job]]]


def _intervals(demands: list[Demand], num_gpus: int) -> _Rest:
    starts = np.array([demand.start_s for demand in demands])
    ends = np.array([demand.deadline_s for demand in demands])
    most = np.array([demand.sizes[-1] for demand in demands])
    edges = np.unique(np.concatenate([starts, ends]))
    first, stop = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
    changes = np.zeros(len(edges))
    np.add.at(changes, first, most)
    np.add.at(changes, stop, -most)
    tight = np.cumsum(changes)[:-1] > num_gpus
    idle_s = np.concatenate([[0.0], np.cumsum(np.diff(edges) * ~tight)])
    fastest = np.array([demand.rates[-1] for demand in demands])
    return _Rest(demands, edges, first, stop, tight, fastest * (idle_s[stop] - idle_s[first]))


def _reduce(demands: list[Demand], num_gpus: int) -> _Rest | None:
    """Leaves out jobs that are done without hurting anybody: in intervals where all get all they can use.

    They use only such intervals, so whatever becomes of the others they are not in the way. None: no job is
    left. Changes nothing in the optimum.
    """
    while demands:
        rest = _intervals(demands, num_gpus)
        left = [d for d, free in zip(demands, rest.free, strict=True) if free < d.iterations]
        if len(left) == len(demands):
            return rest
        demands = left
    return None


def _groups(rest: _Rest) -> list[list[int]]:
    """Jobs that compete with one another, directly or through others."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    cells = [rest.cells(job) for job in range(len(rest.demands))]
    rows = np.repeat(np.arange(len(cells)), [len(each) for each in cells])
    columns = np.concatenate(cells) + len(cells)
    size = len(cells) + len(rest.tight)
    graph = coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    _, labels = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for job, label in enumerate(labels[: len(cells)]):
        groups.setdefault(int(label), []).append(job)
    return list(groups.values())


def _all_fit_evenly(rest: _Rest, group: list[int], num_gpus: int) -> bool:
    """Whether all jobs of a group can be served with an even rate each: then no program need be solved."""
    load = np.zeros(len(rest.tight))
    for job in group:
        cells, demand = rest.cells(job), rest.demands[job]
        rate = (demand.iterations - rest.free[job]) / rest.lengths_s[cells].sum()
        load[cells] += demand.gpus_for(rate)
    return bool(load.max() <= num_gpus)


# --- the program ----------------------------------------------------------------------------------


class _Triplets:
    """Entries of a sparse matrix, as they come."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._values: list[Floats] = []

    def add(self, rows: object, columns: object, values: object) -> None:
        """Entries; a scalar goes with each of the others."""
        row, column, value = np.broadcast_arrays(rows, columns, values)  # type: ignore[arg-type]
        self._rows.append(row.ravel())
        self._columns.append(column.ravel())
        self._values.append(value.ravel().astype(float))

    def matrix(self, num_columns: int, num_rows: int) -> object:
        """The sum of all entries."""
        from scipy.sparse import csr_matrix

        where = np.concatenate(self._rows), np.concatenate(self._columns)
        return csr_matrix((np.concatenate(self._values), where), shape=(num_rows, num_columns))


def _solve(rest: _Rest, group: list[int], num_gpus: int) -> tuple[Floats, Floats]:
    """How much of each job of the group to take, and the price of a GPU-second in each interval.

    Columns: first z of each job; then, by job and by piece of its envelope, the GPUs of that piece in each of
    its tight intervals. Rows: a job's iterations; an interval's GPUs; no piece is wider than z of its width.
    """
    from scipy.optimize import linprog

    used = np.unique(np.concatenate([rest.cells(job) for job in group]))
    num_jobs, column = len(group), len(group)
    row = num_jobs + len(used)
    entries = _Triplets()
    widths = [np.ones(num_jobs)]
    for place, job in enumerate(group):
        demand, cells = rest.demands[job], rest.cells(job)
        # z iterations <= z free + the pieces' work, in parts of the iterations
        entries.add(place, place, 1 - rest.free[job] / demand.iterations)
        intervals = num_jobs + np.searchsorted(used, cells)
        for width, gain in zip(np.diff(demand.sizes), np.diff(demand.rates), strict=True):
            columns, rows = column + np.arange(len(cells)), row + np.arange(len(cells))
            entries.add(place, columns, -(gain / width) * rest.lengths_s[cells] / demand.iterations)
            entries.add(intervals, columns, 1.0)
            entries.add(rows, columns, 1 / width)
            entries.add(rows, place, -1.0)
            widths.append(np.full(len(cells), width))
            column, row = column + len(cells), row + len(cells)
    limits = np.zeros(row)
    limits[num_jobs : num_jobs + len(used)] = num_gpus
    most = np.concatenate(widths)
    found = linprog(
        np.concatenate([-np.ones(num_jobs), np.zeros(column - num_jobs)]),
        A_ub=entries.matrix(column, row),
        b_ub=limits,
        bounds=np.stack([np.zeros(column), most], axis=1),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"the linear program of {num_jobs} jobs was not solved: {found.message}")
    prices = np.zeros(len(rest.tight))
    prices[used] = -found.ineqlin.marginals[num_jobs : num_jobs + len(used)] / rest.lengths_s[used]
    return np.clip(found.x[:num_jobs], 0.0, 1.0), prices


def fluid_bound(demands: Sequence[Demand], num_gpus: int) -> Bound:
    """The bound for these jobs; see the module's docstring."""
    began_s = time.perf_counter()
    possible = [demand for demand in demands if demand.is_possible]
    served = {demand.name: float(demand.is_possible) for demand in demands}
    rest = _reduce(possible, num_gpus)
    whole, edges, prices, num_in_program = len(possible), np.zeros(1), np.zeros(0), 0
    if rest is not None:
        edges, prices = rest.edges_s, np.zeros(len(rest.tight))
        for group in _groups(rest):
            if _all_fit_evenly(rest, group, num_gpus):
                continue
            taken, group_prices = _solve(rest, group, num_gpus)
            prices += group_prices
            num_in_program += len(group)
            whole -= len(group) - math.floor(taken.sum() + ROUNDING)
            served.update(zip([rest.demands[job].name for job in group], taken.tolist(), strict=True))
    return Bound(
        num_jobs=len(demands),
        num_possible=len(possible),
        jobs=sum(served.values()),
        whole_jobs=whole,
        served=served,
        edges_s=edges,
        prices=prices,
        seconds=time.perf_counter() - began_s,
        num_in_program=num_in_program,
    )


# --- for people -----------------------------------------------------------------------------------


def bound_of(trace: Path, num_gpus: int, cost: Overheads = FREE) -> tuple[list[Demand], Bound]:
    """The jobs of a trace, and their bound."""
    demands = demands_of(read_trace(trace, find_profiles(trace)), num_gpus, cost)
    return demands, fluid_bound(demands, num_gpus)


def run() -> Iterator[Figure]:
    """The bounds of the table; reference: what is possible if no two jobs were in each other's way."""
    for name, num_gpus in TABLE:
        trace = TRACES / f"{name}.csv"
        _, bound = bound_of(trace, num_gpus)
        _, started = bound_of(trace, num_gpus, published(num_gpus))
        yield figure(
            f"{name} on {num_gpus}: most that can be in time",
            bound.ratio,
            "",
            bound.num_possible / bound.num_jobs,
            f"python -m benchmarks.fluid benchmarks/data/scheduler/traces/{name}.csv --gpus {num_gpus}",
            f"{bound.whole_jobs} of {bound.num_jobs} jobs ({bound.jobs:.2f} in parts); with the cost of a "
            f"start each {started.whole_jobs} ({started.jobs:.2f}), {started.ratio:.3f}",
        )


def page(demands: Sequence[Demand], bound: Bound) -> list[str]:
    """What the bound says, for a person."""
    lines = [
        f"{bound.whole_jobs} of {bound.num_jobs} deadline jobs can be in time at most: {bound.ratio:.4f}",
        f"{bound.num_possible} are possible alone on the cluster; together {bound.jobs:.3f} in parts",
        f"{bound.num_in_program} jobs went into the linear program, {bound.seconds:.1f} s in all",
    ]
    return [*lines, *_prices(demands, bound), *_left_out(demands, bound)]


def _prices(demands: Sequence[Demand], bound: Bound, rows: int = 12) -> list[str]:
    """The mean price in each of some spans of time."""
    if not bound.prices.any():
        return ["GPUs are never scarce"]
    lines = ["hours from the first arrival: jobs that 1,000 more GPU-hours would be worth"]
    begin_s = min(demand.start_s for demand in demands)
    paid = np.concatenate([[0.0], np.cumsum(bound.prices * np.diff(bound.edges_s))])
    scarce = np.flatnonzero(bound.prices)
    spans = np.linspace(bound.edges_s[scarce[0]], bound.edges_s[scarce[-1] + 1], rows + 1)
    for since_s, until_s in zip(spans, spans[1:], strict=False):
        price = np.diff(np.interp([since_s, until_s], bound.edges_s, paid))[0] / (until_s - since_s)
        lines.append(
            f"  {(since_s - begin_s) / 3600:7.2f} to {(until_s - begin_s) / 3600:7.2f}  {price * 3.6e6:8.3f}"
        )
    return lines


def _left_out(demands: Sequence[Demand], bound: Bound) -> list[str]:
    """Jobs that are possible alone, and that the optimum does not take whole."""
    lines = ["possible alone, and not taken whole: part taken, GPUs and GPU-hours at an even rate, window"]
    for demand in demands:
        taken = bound.served[demand.name]
        if demand.is_possible and taken < 1 - ROUNDING:
            hours = (demand.deadline_s - demand.start_s) / 3600
            gpus = demand.even_gpus
            lines.append(f"  {demand.name}  {taken:.2f}  {gpus:6.1f}  {gpus * hours:7.1f}  {hours:6.2f} h")
    return lines if len(lines) > 1 else ["every job that is possible alone can be served"]


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fluid")
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--gpus", type=int, required=True, metavar="N")
    parser.add_argument(
        "--with-start", action="store_true", help="charge each job the published cost of a start"
    )
    arguments = parser.parse_args()
    cost = published(arguments.gpus) if arguments.with_start else FREE
    print("\n".join(page(*bound_of(arguments.trace, arguments.gpus, cost))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
