"""Curves and figures of a run whose master is in a job of its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable

from elasticflow.run.tracks import TrackDir
from tests.clusters.processes import free_ports
from tests.e2e.test_measured_by_prometheus import until

from .conftest import SlurmRun


def test_curves_and_figures_through_two_masters(submit: Callable[..., SlurmRun], undisturbed: str) -> None:
    (port,) = free_ports(1)
    options = ("--workers", 2, "--track", "csv", "--metrics-port", port)
    run = submit("small_torch.py", *options, shut=["step 20"])
    run.held_at("step 20")
    told = until(port, lambda told: told.get("elasticflow_step_total", 0) >= 16)
    assert told["elasticflow_masters_total"] == 1
    run.kill("master")
    until(port, lambda told: told.get("elasticflow_masters_total") == 2)
    run.open("step 20")
    assert run.digest() == undisturbed
    tracks = TrackDir(run.path / "tracks")
    assert not tracks.is_held()  # its job has waited for that moment
    rows = list(csv.DictReader((tracks.path / "metrics.csv").read_text().splitlines()))
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(set(steps)) and steps[-1] == run.report().step
    assert json.loads((tracks.path / "about.json").read_bytes())["digest"] == undisturbed
    run.leaves_nothing()
