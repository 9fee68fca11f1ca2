"""Files that TensorBoard reads, by tensorboardX."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import CurveTracker

FILES = "events.out.tfevents.*"


class TensorBoardTracker(CurveTracker):
    """One file of events, which is written anew when a tracker begins: it can only be added to."""

    def begin(self, points: Sequence[TrackPoint]) -> None:
        from tensorboardX import SummaryWriter

        for path in self.folder.glob(FILES):
            path.unlink()
        # With the first step as a beginning TensorBoard forgets what it has read of files that are gone.
        self._writer = SummaryWriter(logdir=str(self.folder), purge_step=0)
        self.draw(points)
        self._text("settings", {name: str(value) for name, value in self.about.settings.items()})

    def draw(self, points: Sequence[TrackPoint]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.at)
        self._writer.flush()

    def tell(self, facts: dict[str, str]) -> None:
        self._text("run", {"run": self.about.path, **facts})

    def end(self, state: str) -> None:
        self._writer.close()

    def _text(self, tag: str, values: dict[str, str]) -> None:
        rows = "\n".join(f"| {name} | `{value}` |" for name, value in values.items())
        self._writer.add_text(tag, f"| | |\n|---|---|\n{rows}", 0, walltime=self.about.started_at)
        self._writer.flush()
