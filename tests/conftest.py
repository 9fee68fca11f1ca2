"""One real Hadoop cluster for all tests that need one, started by the first of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import hadoop as hadoop_cluster
from tests.clusters.hadoop import HadoopCluster


@pytest.fixture(scope="session")
def hdfs_cluster() -> Iterator[HadoopCluster]:
    """HDFS; YARN too if a test before has asked for it."""
    hadoop_cluster.require()
    with HadoopCluster(yarn=False) as started:
        yield started


@pytest.fixture(scope="session")
def hadoop(hdfs_cluster: HadoopCluster) -> HadoopCluster:
    """HDFS and YARN."""
    hdfs_cluster.start_yarn()
    return hdfs_cluster
