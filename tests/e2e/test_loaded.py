"""A handful of the runs of the benchmark of that name, others each time: one digest a program."""

from __future__ import annotations

import random
import secrets

import pytest

from benchmarks.busy import num_cores
from benchmarks.loaded import HANG_S, loaded, table

RUNS = 4


@pytest.mark.timeout(3 * HANG_S)
def test_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = random.sample(range(10**6), RUNS)
    with capsys.disabled():  # the seed is worth a line even if all is well
        print()
        found = loaded(secrets.randbelow(10**6), numbers, load=2 * num_cores())
        print(table(found))
    assert len(found.outcomes) == RUNS
    told = [
        f"{one.plan.command}: exit code {one.code}, see {one.folder}"
        for one in found.differing + found.failed
    ]
    assert not told, "\n".join(told)
