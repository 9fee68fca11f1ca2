"""A table: one line a step, one column a name."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime, timezone

import msgspec

from elasticflow.run.folder import replace
from elasticflow.trackers.points import TrackPoint, in_order
from elasticflow.trackers.tracker import CurveTracker


class CsvTracker(CurveTracker):
    """``metrics.csv``, written anew each time, and ``about.json``."""

    def begin(self, points: Sequence[TrackPoint]) -> None:
        self._points = list(points)
        self._facts: dict[str, str] = {}
        self._write()

    def draw(self, points: Sequence[TrackPoint]) -> None:
        self._points += points
        self._write()

    def tell(self, facts: dict[str, str]) -> None:
        self._facts |= facts
        settings = msgspec.to_builtins(self.about.settings)
        about = {"run": self.about.path, "settings": settings, **self._facts}
        replace(self.folder / "about.json", msgspec.json.format(msgspec.json.encode(about)), durable=False)

    def end(self, state: str) -> None:
        self.tell({"state": state})

    def _write(self) -> None:
        rows: dict[int, dict[str, object]] = {}
        for point in in_order(self._points):
            row = rows.setdefault(point.step, {"step": point.step, "time": _time(point.at)})
            row.update(point.values)
        names = dict.fromkeys(["step", "time", *sorted({name for row in rows.values() for name in row})])
        text = io.StringIO()
        table = csv.DictWriter(text, list(names), lineterminator="\n")
        table.writeheader()
        table.writerows(rows.values())
        replace(self.folder / "metrics.csv", text.getvalue().encode(), durable=False)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
