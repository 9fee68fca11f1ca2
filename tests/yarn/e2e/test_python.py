"""From a script: submitted, and begun with the weights of another run, on HDFS."""

from __future__ import annotations

from pathlib import Path

from tests.clusters.hadoop import HadoopCluster
from tests.e2e.from_python import check_submitted

from .conftest import SMALL


def test_submitted_from_python(hadoop: HadoopCluster, tmp_path: Path, url: str, undisturbed: str) -> None:
    hadoop.reset()
    try:
        check_submitted("yarn", SMALL, tmp_path, url, undisturbed)
    finally:
        hadoop.reset()
