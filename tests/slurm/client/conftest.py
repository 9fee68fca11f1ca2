"""A cluster for the contract suite, which stops the controller: it is of this folder alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters.slurm import SlurmCluster, require


@pytest.fixture(scope="package")
def cluster() -> Iterator[SlurmCluster]:
    require()
    with SlurmCluster() as running:
        yield running
