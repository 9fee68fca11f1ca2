"""A thread for each tracker: what one does, or does not, is no concern of the others, nor of the run."""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from elasticflow.run.tracks import TrackDir
from elasticflow.trackers.points import TrackPoint
from elasticflow.trackers.tracker import About, CurveTracker

HOMES = {
    "csv": ("to_csv", "CsvTracker"),
    "mlflow": ("to_mlflow", "MlflowTracker"),
    "tensorboard": ("to_tensorboard", "TensorBoardTracker"),
    "wandb": ("to_wandb", "WandbTracker"),
}
AGAIN_S = 30.0
"""One that has failed is begun again after so long, and at the end."""


def make_tracker(name: str, folder: TrackDir, about: About) -> CurveTracker:
    """Imports it, but not yet its library."""
    module, kind = HOMES[name]
    home = folder.path if name == "csv" else folder.path / name
    home.mkdir(mode=0o700, exist_ok=True)
    made: CurveTracker = getattr(importlib.import_module(f"elasticflow.trackers.{module}"), kind)(home, about)
    return made


class Drawing(threading.Thread):
    """One tracker, from its beginning to its end. say: is told once for each thing that is wrong.

    points: all that are committed so far.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], CurveTracker],
        points: Sequence[TrackPoint],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"tracker {name}", daemon=True)
        self.tracker, self.problem = name, ""
        self._make, self._say = make, say
        self._points, self._facts = list(points), dict[str, str]()
        self._todo: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def draw(self, points: Sequence[TrackPoint]) -> None:
        """Further points, soon."""
        self._todo.put(("draw", list(points)))

    def undo(self, points: Sequence[TrackPoint]) -> None:
        """These are all that are left."""
        self._todo.put(("undo", list(points)))

    def tell(self, facts: dict[str, str]) -> None:
        """What else is known."""
        self._todo.put(("tell", facts))

    def end(self, state: str) -> None:
        """Nothing more comes."""
        self._todo.put(("end", state))

    def run(self) -> None:
        """See the class's docstring."""
        tracker, failed_s = self._begun(), time.monotonic()
        what = ""
        while what != "end":
            what, value = self._todo.get()
            self._take(what, value)
            if tracker is not None and what != "undo":
                tracker = self._tried(partial(_do, tracker, what, value))
            elif what in ("undo", "end") or time.monotonic() >= failed_s + AGAIN_S:
                tracker = self._begun()
                if tracker is not None and what == "end":
                    tracker = self._tried(partial(_do, tracker, what, value))
            else:
                continue  # it is not time yet
            if tracker is None:
                failed_s = time.monotonic()

    def _take(self, what: str, value: Any) -> None:
        """What one that begins again will have to draw."""
        if what == "draw":
            self._points += value
        elif what == "undo":
            self._points = value
        elif what == "tell":
            self._facts |= value

    def _begun(self) -> CurveTracker | None:
        def begin() -> CurveTracker:
            tracker = self._make()
            tracker.begin(self._points)
            if self._facts:
                tracker.tell(self._facts)
            return tracker

        return self._tried(begin)

    def _tried(self, act: Callable[[], CurveTracker]) -> CurveTracker | None:
        """None: it failed, whatever with: a library may even leave."""
        try:
            tracker = act()
        except BaseException as error:  # noqa: BLE001
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            if text != self.problem:
                self.problem = text
                self._say(f"tracker {self.tracker}: {text}; it is begun again later")
            return None
        self.problem = ""
        return tracker


def _do(tracker: CurveTracker, what: str, value: Any) -> CurveTracker:
    if what == "draw":
        tracker.draw(value)
    elif what == "tell":
        tracker.tell(value)
    else:
        tracker.end(value)
    return tracker
