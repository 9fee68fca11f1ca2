"""One real Hadoop cluster for all tests that need one, started by the first of them.

Of several processes that run tests (pytest-xdist, ``--dist loadgroup``), one has each cluster; a second HDFS
may be there for tests that need no YARN.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.clusters import hadoop as hadoop_cluster
from tests.clusters.hadoop import HadoopCluster

TESTS = Path(__file__).parent
SLURM = {"cluster", "limited"}
"""Fixtures in tests/slurm that are clusters."""

hypothesis.settings.register_profile("however busy the machine is", deadline=None)
hypothesis.settings.load_profile("however busy the machine is")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "hadoop" in fixtures:
            item.add_marker(pytest.mark.xdist_group("hadoop"))
        elif "hdfs_cluster" in fixtures:
            item.add_marker(pytest.mark.xdist_group("hdfs"))
        elif fixtures & SLURM and item.path.is_relative_to(TESTS / "slurm"):
            item.add_marker(pytest.mark.xdist_group("slurm"))
        elif not item.path.is_relative_to(TESTS / "e2e"):
            continue
        item.add_marker(pytest.mark.whole)


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist has marked whose tests belong together, or each process would start its own clusters."""
    if hasattr(session.config, "workerinput"):
        names = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
        if any("@" not in name.rpartition("]")[2] for name in names):
            raise pytest.UsageError(
                "this pytest-xdist does not know xdist_group with this pytest: see setup.py"
            )


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
