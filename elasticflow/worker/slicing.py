"""What it costs to compute a batch in slices: measured, for people who choose how many there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elasticflow.process.available import available_memory
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind
from elasticflow.worker.whose_fault import lacks_memory

if TYPE_CHECKING:
    from elasticflow.worker.loaded import Loaded

MOST = 64
"""More slices are not tried."""
ROUNDS, ENOUGH_S = 5, 0.5
"""So often a slice is computed, after one that does not count, and for no longer: the quickest counts."""
MOST_S = 10.0
"""Larger slices are not tried once all this has taken so long."""
ROOM = 0.5
"""Nor are those that may take more than this part of the memory that there is: a process would die of it."""
FAIR = 1.25
"""So many times what a batch takes at once may be taken in slices, before people are told of fewer."""


class SlicingCost(NamedTuple):
    """batch_s: what a batch takes in so many slices, one after the other."""

    num_slices: int
    batch_s: float


def costs_of(loaded: Loaded, batch_size: int) -> list[SlicingCost]:
    """Forward and backward, in 1, 2, 4, ... slices of a batch, as far as such slices can be computed.

    From the smallest slices on: what one of them has taken says whether there is room for one of twice the
    size.
    """
    batches, work = loaded.batches(loaded.schedule), loaded.schedule.at(0)
    rows = np.concatenate([batches.rows(work, number) for number in range(loaded.schedule.num_slices)])
    found, out = list[SlicingCost](), Vector(loaded.replica.layout)
    num_slices = 1 << (min(MOST, batch_size, len(rows)).bit_length() - 1)
    begun_s, before_bytes = time.perf_counter(), _resident_bytes("VmRSS")
    while num_slices and time.perf_counter() < begun_s + MOST_S and _has_room(before_bytes):
        batch = batches.of_rows(Kind.TRAIN, rows[: len(rows) // num_slices])
        times: list[float] = []
        try:
            while len(times) <= ROUNDS and sum(times[1:]) < ENOUGH_S:
                since_s = time.perf_counter()
                loaded.replica.compute(batch, 0, 1.0, out)
                times.append(time.perf_counter() - since_s)
            found.append(SlicingCost(num_slices, num_slices * min(times[1:])))
        except Exception as error:  # noqa: BLE001  (BatchNorm, say, raises on a single record)
            if lacks_memory(error):
                break
        num_slices //= 2
    return found[::-1]


def _has_room(before_bytes: int) -> bool:
    """Whether there is memory for twice of what has been taken at most since there were so many bytes."""
    taken = max(0, _resident_bytes("VmHWM") - before_bytes)
    return 2 * taken <= ROOM * min(available_memory().values(), default=0)


def _resident_bytes(name: str) -> int:
    """VmRSS: of this process now; VmHWM: at most so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def advice(costs: list[SlicingCost], chosen: int) -> list[str]:
    """For people: what each number of slices costs, and a better one, if the chosen is dear."""
    by_slices = dict(costs)
    least_s = min(by_slices.values(), default=0.0)
    if not least_s:
        return []
    told = ", ".join(f"{n}: {each / least_s:.2f}" for n, each in costs)
    lines = [f"a batch in slices takes, in multiples of {1000 * least_s:.3g} ms: {told}"]
    fair = max((n for n in _fair(costs) if n < chosen), default=0)
    if chosen in by_slices and by_slices[chosen] > FAIR * least_s and fair:
        times, workers = by_slices[chosen] / by_slices[fair], f"{fair} worker{'s' * (fair > 1)}"
        lines.append(
            f"slices: {chosen} cost {times:.2f} times as much as {fair}, which at most {workers} can share; "
            "a larger batch_size makes slices cheaper, too"
        )
    return lines


def _fair(costs: list[SlicingCost]) -> list[int]:
    """Numbers of slices that cost little more than the cheapest."""
    least_s = min((each.batch_s for each in costs), default=0.0)
    return [each.num_slices for each in costs if each.batch_s <= FAIR * least_s]


def chosen_by(costs: list[SlicingCost], most_workers: int, usual: int) -> tuple[int, str]:
    """How many slices a run should have, and why: as many as cost little more than the cheapest, up to the
    usual number, and as many workers as there may be can share them."""
    fewest = 1 << (most_workers - 1).bit_length()
    fair = max((n for n in _fair(costs) if n <= usual), default=usual)
    found = max(fair, fewest) if costs else usual
    why = advice(costs, 0)[0] if costs else "none could be measured"
    if found > fair:
        why += f"; {most_workers} workers share them"
    return found, why
