"""A run of Weights & Biases, offline: ``wandb sync`` sends it, when people want that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import CurveTracker

OFFLINE = "offline-run-*"


class WandbTracker(CurveTracker):
    """One folder of an offline run, which is written anew when a tracker begins: it can only be added to."""

    def begin(self, points: Sequence[TrackPoint]) -> None:
        os.environ["WANDB_MODE"] = "offline"
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        if wandb.run is not None:  # of an earlier beginning, which is written anew
            wandb.run.finish(exit_code=1)
            wandb.teardown()
        for path in (self.folder / "wandb").glob(OFFLINE):
            shutil.rmtree(path)
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
        )
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(self.folder),
            id=self.about.token,
            name=self.about.name,
            project=os.environ.get("WANDB_PROJECT", "elasticflow"),
            config={**self.about.settings, "run": self.about.path},
            settings=quiet,
        )
        self._run.define_metric("*", step_metric="step")
        self.draw(points)

    def draw(self, points: Sequence[TrackPoint]) -> None:
        for point in points:
            self._run.log({"step": point.step, **point.values})

    def tell(self, facts: dict[str, str]) -> None:
        self._run.summary.update(facts)

    def end(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state in ("finished", "stopped") else 1)
        import wandb

        wandb.teardown()  # its own process may write still; this waits for it
