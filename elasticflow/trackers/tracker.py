"""What a tracker must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.trackers.points import TrackPoint


class About(msgspec.Struct, frozen=True):
    """A run, for trackers. name: of its folder. settings: by name, without sections of clusters.

    token: of the folder in which curves are drawn; by it a tracker knows again what it drew before.
    """

    path: str
    name: str
    program: str
    started_at: float
    settings: dict[str, Any]
    token: str


class CurveTracker(ABC):
    """Draws one run's curves, below ``folder``, which is its own.

    Whatever it raises, or how long it takes, costs the run nothing: ``Drawing`` calls it in a thread of its
    own, and begins again with another one.
    """

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about

    @abstractmethod
    def begin(self, points: Sequence[TrackPoint]) -> None:
        """Has drawn these, and no others: also where one before it has drawn some, or more."""

    @abstractmethod
    def draw(self, points: Sequence[TrackPoint]) -> None:
        """Further ones."""

    @abstractmethod
    def tell(self, facts: dict[str, str]) -> None:
        """What is known of the run by now, such as its digest, by name; may be told again."""

    @abstractmethod
    def end(self, state: str) -> None:
        """There is nothing more to come. state: that the run has ended in."""
