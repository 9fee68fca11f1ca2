"""A sweep whose runs are jobs of SLURM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import elasticflow as ef
from tests.clusters.slurm import SlurmCluster
from tests.e2e.conftest import PROGRAMS, cli

from .conftest import SMALL

pytest.importorskip("optuna")
OPTIONS = ("--space", "width=4|8", "--sampler", "grid", "--metric", "cost", "--epochs", 2, "--batch-size", 20)


def swept(folder: Path, *options: object) -> dict[str, Any]:
    """By width, the value and the model."""
    done = cli("sweep", PROGRAMS / "swept_torch.py", "--folder", folder, *OPTIONS, "--json", *options)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    return {
        each["values"]["width"]: (each["value"], ef.Run(each["run"]).checkpoint().digest) for each in trials
    }


def test_trials_are_jobs_and_as_here(cluster: SlurmCluster, tmp_path: Path) -> None:
    cluster.reset()
    config = tmp_path / "slurm.yaml"
    section = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}], **SMALL}
    config.write_text(yaml.safe_dump({"backend": "slurm", "workers": "1", "slurm": section}))
    found = swept(tmp_path / "there", "--config", config, "--parallel", 2)
    assert {ef.Run(each).status()["backend"] for each in (tmp_path / "there").glob("trial-*")} == {"slurm"}
    assert found == swept(tmp_path / "here", "--workers", 1)
    cluster.wait_until_idle()
