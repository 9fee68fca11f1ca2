"""Curves and figures of a run whose master is in a container, and whose folder is on HDFS."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.clusters.processes import free_ports
from tests.e2e.conftest import PATIENCE_S, cli
from tests.e2e.processes import CLI
from tests.e2e.test_measured_by_prometheus import until

from .conftest import YarnRun


def test_curves_and_figures(
    submit: Callable[..., YarnRun], undisturbed: str, url: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    run = submit("small_torch.py", "--workers", 2, "--metrics-port", port, shut=["step 20"])
    run.held_at("step 20")
    told = until(port, lambda told: told.get("elasticflow_step_total", 0) >= 16)
    assert told["elasticflow_masters_total"] == 1 and told["elasticflow_workers"] == 2
    drawn = tmp_path / "curves"
    track = [*CLI, "track", str(run.path), "--with", "csv", "--to", str(drawn)]
    with subprocess.Popen(track, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tracking:
        try:
            run.open("step 20")
            assert run.digest() == undisturbed
            said, _ = tracking.communicate(timeout=PATIENCE_S)
        finally:
            tracking.kill()
    assert tracking.returncode == 0, said
    steps = [int(row["step"]) for row in csv.DictReader((drawn / "metrics.csv").read_text().splitlines())]
    assert steps == sorted(set(steps)) and steps[-1] == run.report().step == 48
    assert json.loads((drawn / "about.json").read_bytes())["digest"] == undisturbed

    listed = json.loads(cli("runs", url, "--json").stdout)["runs"]
    assert [(each["state"], each["digest"]) for each in listed] == [("finished", undisturbed)]
    compared = cli("compare", run.path, run.path)
    assert compared.returncode == 0 and "digests: the same" in compared.stdout, compared.stdout
    run.leaves_nothing()
