"""Pieces of the soak benchmark, with another seed each time; a failure says how to replay it."""

from __future__ import annotations

import os
import secrets

import pytest

from benchmarks.soak import HANG_S, soak, table
from elasticflow.run.config import ALL_REDUCE, PARAMETER_SERVER

SECONDS = float(os.environ.get("ELASTICFLOW_SOAK_S", "20"))
"""No strike comes after so many; then the run under way makes its last steps."""


@pytest.mark.timeout(SECONDS + 8 * HANG_S + 60)
@pytest.mark.parametrize("strategy", [PARAMETER_SERVER, ALL_REDUCE])
def test_soak(capsys: pytest.CaptureFixture[str], strategy: str) -> None:
    """Beside a load; with parameter servers every other time through a network that is slow and breaks."""
    with capsys.disabled():  # the seed is worth a line even if all is well
        print()
        outcomes = soak(
            secrets.randbelow(10**6),
            seconds=SECONDS / 2,
            throttled=strategy == PARAMETER_SERVER and secrets.choice([True, False]),
            strategy=strategy,
            tell=lambda text: print(text, flush=True),
        )
        print(table(outcomes))
    assert sum(len(outcome.faults) for outcome in outcomes), "nobody was hit"
    told = [f"{one.command}: {one.problems}, see {one.folder}" for one in outcomes if one.problems]
    assert not told, "\n".join(told)
