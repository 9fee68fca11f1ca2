"""One real Hadoop cluster for all tests that need one, started by the first of them.

Of several processes that run tests (pytest-xdist, ``--dist loadgroup``), one has each cluster. There are two
of SLURM, since their tests wait for them most of the time, and an HDFS for tests without YARN. Tests of whole
runs here are together by their file, as most compare with one run that nobody disturbs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.clusters import hadoop as hadoop_cluster
from tests.clusters import hive
from tests.clusters.hadoop import HadoopCluster
from tests.clusters.hive import HiveMetastore
from tests.clusters.s3 import S3Server
from tests.thorough import THOROUGH

TESTS = Path(__file__).parent
SLURM = {"cluster", "limited"}
"""Fixtures in tests/slurm that are clusters."""
CLUSTERS = {"hdfs_cluster", "hive_metastore", "kubernetes", "secure_hdfs", *SLURM}
"""Fixtures that are started once, and whose tests are together."""
SECOND = "slurm/e2e"
"""Tests that have a second cluster of their kind, beside the first: they wait for it most of the time."""
GROUPS = (
    "hadoop",
    f"slurm {SECOND}",
    "slurm",
    "kubernetes",
    "kerberos",
    "hive",
    "hdfs",
)
"""What takes longest begins first, and what fills the processors' gaps comes last."""
WHOLE = ("data", "e2e", "hadoop", "hdfs", "kubernetes", "slurm", "yarn")
"""Folders with tests of whole runs: of the others nothing has to be imported for those."""

hypothesis.settings.register_profile("however busy the machine is", deadline=None)
hypothesis.settings.load_profile("however busy the machine is")

# Triton's LLVM aborts a process that has TensorFlow's already, and torch.optim imports it: a process of tests
# may have both, in any order. Nothing is compiled here.
sys.modules["triton"] = None  # type: ignore[assignment]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if "not whole" in config.option.markexpr or "whole" not in config.option.markexpr:
        return None
    if collection_path.parent != TESTS or not collection_path.is_dir():
        return None
    return collection_path.name not in WHOLE or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if cluster := _cluster_of(item, fixtures):
            second = SECOND if item.path.is_relative_to(TESTS / SECOND) else ""
            item.add_marker(pytest.mark.xdist_group(f"{cluster} {second}".strip()))
        elif _is_here(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # they share their undisturbed run
        else:
            continue
        item.add_marker(pytest.mark.whole)
        if item.path.relative_to(TESTS).parts[0] not in WHOLE:
            raise pytest.UsageError(
                f"{item.nodeid} would never run: add its folder to WHOLE of tests/conftest.py"
            )
    _mark_thorough(items, config)
    if hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)
        items.sort(key=lambda item: (_turn(item), -sizes[item.path] if _is_here(item) else 0))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends clusters with the last test of their group: idle ones take a quarter of a core each."""
    if hasattr(item.config, "workerinput") and nextitem is not None and _turn(item) != _turn(nextitem):
        for name, definitions in item._fixtureinfo.name2fixturedefs.items():  # type: ignore[attr-defined]
            if name in CLUSTERS:
                definitions[-1].finish(item._request)  # type: ignore[attr-defined]


def _mark_thorough(items: list[pytest.Item], config: pytest.Config) -> None:
    unused = set() if any("::" in word for word in config.args) else set(THOROUGH)
    for item in items:
        if names := [name for name in THOROUGH if item.nodeid.startswith(f"tests/{name}")]:
            item.add_marker(pytest.mark.thorough)
            unused.difference_update(names)
    files = {item.path for item in items}
    if missing := sorted(name for name in unused if TESTS / name.partition("::")[0] in files):
        raise pytest.UsageError(f"tests/thorough.py names tests that there are not: {', '.join(missing)}")


def _is_here(item: pytest.Item) -> bool:
    """Whether it is of whole runs on this machine; the files with most tests begin first."""
    return item.path.is_relative_to(TESTS / "e2e")


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    return GROUPS.index(group.args[0]) if group and group.args[0] in GROUPS else len(GROUPS)


def _cluster_of(item: pytest.Item, fixtures: set[str]) -> str:
    """What its tests share; "": it needs no cluster."""
    if "hadoop" in fixtures:
        return "hadoop"
    if "secure_hdfs" in fixtures:
        return "kerberos"
    if "hive_metastore" in fixtures:
        return "hive"
    if "hdfs_cluster" in fixtures:
        return "hdfs"
    if "kubernetes" in fixtures:
        return "kubernetes"
    return "slurm" if fixtures & SLURM and item.path.is_relative_to(TESTS / "slurm") else ""


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


@pytest.fixture(scope="session")
def hive_metastore() -> Iterator[HiveMetastore]:
    """Of Hive, in which nothing is yet."""
    hive.require()
    with HiveMetastore() as started:
        yield started


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An object store."""
    with S3Server() as started:
        yield started
