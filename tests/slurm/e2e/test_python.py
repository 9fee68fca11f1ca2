"""From a script: submitted, and begun with the weights of another run."""

from __future__ import annotations

from pathlib import Path

from tests.clusters.slurm import SlurmCluster
from tests.e2e.from_python import check_submitted

from .conftest import SMALL


def test_submitted_from_python(cluster: SlurmCluster, tmp_path: Path, undisturbed: str) -> None:
    cluster.reset()
    section = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}], **SMALL}
    try:
        check_submitted("slurm", section, tmp_path, str(tmp_path), undisturbed)
    finally:
        cluster.cancel_all()
        cluster.wait_until_idle()
