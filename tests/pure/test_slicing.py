"""What people are told of the cost of slices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticflow.step.layout import Layout
from elasticflow.worker.slicing import SlicingCost, advice, chosen_by, costs_of


def test_slices_that_cost_little_are_only_listed() -> None:
    costs = [SlicingCost(1, 0.010), SlicingCost(2, 0.010), SlicingCost(4, 0.011), SlicingCost(8, 0.012)]
    assert advice(costs, 8) == [
        "a batch in slices takes, in multiples of 10 ms: 1: 1.00, 2: 1.00, 4: 1.10, 8: 1.20"
    ]


def test_of_dear_slices_fewer_are_named() -> None:
    costs = [SlicingCost(1, 0.001), SlicingCost(2, 0.0012), SlicingCost(4, 0.002), SlicingCost(8, 0.003)]
    _, more = advice(costs, 8)
    assert more.startswith("slices: 8 cost 2.50 times as much as 2, which at most 2 workers can share;")


def test_of_a_batch_that_does_not_fit_at_once() -> None:
    assert advice([SlicingCost(4, 0.004), SlicingCost(8, 0.0042)], 8)[0].endswith("4 ms: 4: 1.00, 8: 1.05")
    assert advice([], 8) == []


class Growing:
    """A program of which a record takes 1 GB while it is computed, and the process that it is in."""

    def __init__(self, available_gb: int) -> None:
        self.tried: list[int] = []
        self.available = {"the host": available_gb << 30}
        batches = SimpleNamespace(
            rows=lambda work, number: np.arange(8) + 8 * number, of_rows=lambda kind, rows: len(rows)
        )
        replica = SimpleNamespace(layout=Layout(()), compute=lambda batch, *rest: self.tried.append(batch))
        schedule = SimpleNamespace(num_slices=8, at=lambda tick: tick)
        self.loaded: Any = SimpleNamespace(
            schedule=schedule, replica=replica, batches=lambda schedule: batches
        )

    def resident_bytes(self, name: str) -> int:
        return max(self.tried, default=0) << 30 if name == "VmHWM" else 0


@pytest.mark.parametrize(("available_gb", "most"), [(1 << 10, 64), (64, 32), (32, 16), (1, 1)])
def test_nothing_is_tried_that_the_memory_may_not_hold(
    monkeypatch: pytest.MonkeyPatch, available_gb: int, most: int
) -> None:
    """From one record at once on; of twice as many there must be room for twice as much."""
    program = Growing(available_gb)
    monkeypatch.setattr("elasticflow.worker.slicing._resident_bytes", program.resident_bytes)
    monkeypatch.setattr("elasticflow.worker.slicing.available_memory", lambda: program.available)
    costs = costs_of(program.loaded, 64)
    assert max(program.tried) == most and min(program.tried) == 1
    sizes = [size for size in (64, 32, 16, 8, 4, 2, 1) if size <= most]
    assert [each.num_slices for each in costs] == [64 // size for size in sizes]


def test_as_many_are_chosen_as_cost_little_more_and_workers_need() -> None:
    costs = [SlicingCost(1, 0.001), SlicingCost(2, 0.0012), SlicingCost(4, 0.002), SlicingCost(8, 0.003)]
    assert chosen_by(costs, 1, 8)[0] == 2
    found, why = chosen_by(costs, 3, 8)
    assert found == 4 and why.endswith("8: 3.00; 3 workers share them")
    cheap = [SlicingCost(8, 0.001), SlicingCost(16, 0.001)]
    assert chosen_by(cheap, 2, 8)[0] == 8
    assert chosen_by([], 2, 8) == (8, "none could be measured")


def test_what_raises_on_a_single_record_is_measured_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Growing(1 << 10)
    monkeypatch.setattr("elasticflow.worker.slicing._resident_bytes", program.resident_bytes)
    monkeypatch.setattr("elasticflow.worker.slicing.available_memory", lambda: program.available)
    compute = program.loaded.replica.compute

    def picky(batch: int, *rest: object) -> None:
        if batch == 1:
            raise ValueError("Expected more than 1 value per channel")
        if batch == 32:
            raise MemoryError
        compute(batch)

    program.loaded.replica.compute = picky
    assert [each.num_slices for each in costs_of(program.loaded, 64)] == [4, 8, 16, 32]
