"""A run of MLflow's: on the server that MLFLOW_TRACKING_URI names, or else in files of the folder."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import CurveTracker

TAG = "elasticflow.token"
ENDS = {"finished": "FINISHED", "stopped": "KILLED", "killed": "KILLED"}
"""Words of MLflow's; of all other ends: FAILED."""
AT_ONCE = 500
"""So many metrics a call; MLflow takes 1,000."""
TEXT_CHARS = 500
REFUSED, NAME_CHARS = re.compile(r"[^\w.\- /]"), 250
"""What no name may have that MLflow takes, and how long one may be."""
USUAL = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Of its environment, unless it has others. Files are all that the small package mlflow-skinny can write."""


class MlflowTracker(CurveTracker):
    """What MLflow has stays: of points, those that it lacks are added."""

    def begin(self, points: Sequence[TrackPoint]) -> None:
        points = _named(points)
        for name, value in USUAL.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (self.folder / "mlruns").resolve().as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "elasticflow")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._run = self._again(experiment, {(key, p.step) for p in points for key in p.values})
        if self._run is None:
            tags = {TAG: self.about.token, "elasticflow.run": self.about.path}
            start = int(1000 * self.about.started_at)
            made = self._client.create_run(experiment, start, tags, run_name=self.about.name)
            self._run = made.info.run_id
        self._client.update_run(self._run, status="RUNNING")
        there = self._client.get_run(self._run).data.params
        self._log(params=[each for each in self._params() if each.key not in there])
        drawn = {key: self._steps(key) for key in {key for point in points for key in point.values}}
        self._send((p, key) for p in points for key in p.values if p.step not in drawn[key])

    def _again(self, experiment: str, wanted: set[tuple[str, int]]) -> str | None:
        """The run that was drawn before; None: there is none, or it has points that were undone since."""
        filter_ = f"tags.`{TAG}` = '{self.about.token}'"
        for run in self._client.search_runs([experiment], filter_):
            keys = run.data.metrics
            if all((key, step) in wanted for key in keys for step in self._steps(key, run.info.run_id)):
                return str(run.info.run_id)
            self._client.delete_run(run.info.run_id)
        return None

    def _steps(self, key: str, run: str | None = None) -> set[int]:
        return {each.step for each in self._client.get_metric_history(run or self._run, key)}

    def draw(self, points: Sequence[TrackPoint]) -> None:
        self._send((point, key) for point in _named(points) for key in point.values)

    def _send(self, pairs: Iterator[tuple[TrackPoint, str]]) -> None:
        from mlflow.entities import Metric

        found = [Metric(key, p.values[key], int(1000 * p.at), p.step) for p, key in pairs]
        for first in range(0, len(found), AT_ONCE):
            self._log(metrics=found[first : first + AT_ONCE])

    def _params(self) -> list[Any]:
        from mlflow.entities import Param

        return [Param(name, str(value)[:TEXT_CHARS]) for name, value in self.about.settings.items()]

    def _log(self, **what: Any) -> None:
        if any(what.values()):
            self._client.log_batch(self._run, **what)

    def tell(self, facts: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._log(tags=[RunTag(name, value[: 10 * TEXT_CHARS]) for name, value in facts.items()])

    def end(self, state: str) -> None:
        self._client.set_terminated(self._run, ENDS.get(state, "FAILED"))


def _named(points: Sequence[TrackPoint]) -> list[TrackPoint]:
    """By names that MLflow takes: one that it refuses, such as ``acc@5``, would cost all curves."""
    return [
        msgspec.structs.replace(point, values={_name(name): value for name, value in point.values.items()})
        for point in points
    ]


def _name(text: str) -> str:
    name = REFUSED.sub("_", text)[:NAME_CHARS]
    return name if posixpath.normpath(name) == name else name.replace("/", "_")  # it may be a file's
