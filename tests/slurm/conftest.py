"""One real SLURM cluster for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters.slurm import SlurmCluster, require


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    require()
    with SlurmCluster() as started:
        yield started
