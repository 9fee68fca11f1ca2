"""How an evaluation reads its records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticflow.data import Arrays, Concat, Source, Sources
from elasticflow.data.opening import PartOfTests
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.worker.batches import BLOCKS_SOON, Batches


class InBlocks(Arrays):
    """Notes what it is told of what will be read."""

    def __init__(self, num_rows: int, block_rows: int) -> None:
        super().__init__(x=np.arange(num_rows))
        if block_rows:
            self.block_starts = np.append(np.arange(0, num_rows, block_rows), num_rows)
        self.told: list[list[int]] = []

    def prefetch(self, numbers: Any) -> None:
        self.told.append(numbers.tolist())


def pieces(test: Source, parts: tuple[PartOfTests, ...] = ()) -> list[list[int]]:
    """The records of the second of two slices, piece by piece."""
    schedule = Schedule(num_records=16, num_test=test.num_rows, batch_size=16, num_slices=2, epochs=1)
    replica: Any = SimpleNamespace(prepare=lambda columns: columns["x"].tolist())
    sources = Sources(Arrays(x=np.arange(16)), test, parts)
    batches = Batches(schedule, sources, 0, {"x": "x"}, replica)
    work = Work(1, Kind.EVALUATE, 0, 1, 0, test.num_rows)
    return [batch for batch, _, _, _ in batches.test(work, 1)]


@pytest.mark.parametrize("block_rows", [0, 4, 100])
def test_of_each_piece_no_more_is_told_than_which_blocks_are_next(block_rows):
    test = InBlocks(2000, block_rows)
    read = pieces(test)
    assert sum(read, []) == list(range(1000, 2000)) and max(map(len, read)) == 8
    assert len(test.told) == len(read) and max(map(len, test.told)) <= 1 + BLOCKS_SOON
    assert test.told[-1] == []
    if block_rows == 100:
        assert test.told[0] == [1008, *range(1100, 2000, 100)] and test.told[-2] == [1992]


def test_of_several_sources_each_is_told_of_its_own_blocks():
    clean, noisy = InBlocks(150, 50), InBlocks(50, 50)
    pieces(Concat(clean, noisy), (PartOfTests("clean", 0, 150), PartOfTests("noisy", 150, 200)))
    assert clean.told[0] == [107] and noisy.told[-1] == [42]
