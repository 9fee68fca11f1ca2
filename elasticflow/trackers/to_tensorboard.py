"""Files that TensorBoard reads, by tensorboardX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import CurveTracker

FILES = "events.out.tfevents.*"


class TensorBoardTracker(CurveTracker):
    """One file of events, which is written anew when a tracker begins: it can only be added to.

    Not by tensorboardX's SummaryWriter: it hands events to a thread that a full disk ends, and whose queue
    is then waited for without end.
    """

    def begin(self, points: Sequence[TrackPoint]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        for path in self.folder.glob(FILES):
            path.unlink()
        self._writer = EventsWriter(str(self.folder / "events"))
        # With the first step as a beginning TensorBoard forgets what it has read of files that are gone.
        self._write(0, self.about.started_at, session_log=SessionLog(status=SessionLog.START))
        self.draw(points)
        self._text("settings", {name: str(value) for name, value in self.about.settings.items()})

    def draw(self, points: Sequence[TrackPoint]) -> None:
        from tensorboardX.summary import scalar

        for point in points:
            for name, value in point.values.items():
                self._write(point.step, point.at, summary=scalar(name, value))
        self._writer.flush()

    def tell(self, facts: dict[str, str]) -> None:
        self._text("run", {"run": self.about.path, **facts})

    def end(self, state: str) -> None:
        self._writer.close()

    def _text(self, tag: str, values: dict[str, str]) -> None:
        from tensorboardX.summary import text

        rows = "\n".join(f"| {name} | `{value}` |" for name, value in values.items())
        self._write(0, self.about.started_at, summary=text(tag, f"| | |\n|---|---|\n{rows}"))
        self._writer.flush()

    def _write(self, step: int, at: float, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(step=step, wall_time=at, **what))
