"""What doctor says of a real SLURM, and of one that is silent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.clusters.slurm import SlurmCluster
from tests.e2e.processes import CLI


def doctor(cluster: SlurmCluster, folder: Path, **section: Any) -> dict[str, dict[str, str]]:
    """Findings by subject."""
    conf = folder / "conf.yaml"
    conf.write_text(yaml.safe_dump({"backend": "slurm", "slurm": section}))
    command = [*CLI, "doctor", str(conf), "--json"]
    done = subprocess.run(
        command, cwd=folder, env=cluster.environment, capture_output=True, text=True, timeout=100
    )
    assert not done.stderr, done.stderr
    return {each["subject"]: each for each in json.loads(done.stdout)}


def test_doctor_of_a_real_slurm(cluster: SlurmCluster, tmp_path: Path) -> None:
    places = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}, {"partition": "nowhere"}]}
    found = doctor(cluster, tmp_path, **places)
    assert found["slurm"]["found"].startswith("version 2") and found["slurm"]["health"] == "ok"
    assert {"KillWait", "JobRequeue", "ProctrackType", "MaxArraySize", "SchedulerType"} <= found.keys()
    assert found["partition gpu"]["health"] != "broken"
    assert found["partition nowhere"]["health"] == "broken" and "gpu" in found["partition nowhere"]["cure"]


def test_doctor_of_a_controller_that_is_stopped(cluster: SlurmCluster, tmp_path: Path) -> None:
    cluster.stop_controller()
    try:
        found = doctor(cluster, tmp_path)
    finally:
        cluster.start_controller()
    assert found["slurm"]["health"] == "broken" and "does not answer" in found["slurm"]["found"]
    assert found["python"]["health"] == "ok"
