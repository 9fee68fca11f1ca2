"""Whether a run's folder is still there: one that was moved or removed is no outage."""

from __future__ import annotations

from elasticflow.process.retry import RemovedError
from elasticflow.run.folder import RunDir
from elasticflow.run.whereabouts import Whereabouts
from elasticflow.storage.background import Background

LOOK_S = 2.0
"""Between two looks."""


class Ground:
    """Looks after a run's folder, in the background, where a storage that hangs holds up nobody."""

    def __init__(self, run: RunDir, background: Background) -> None:
        self.is_gone = False
        self.whereabouts = Whereabouts(run)
        self._storage, self._background = run.storage(), background
        self._look_s, self._looking = 0.0, False

    def turn(self, now_s: float) -> float:
        """Has it looked at if it is time. Returns when the next look is due."""
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            if not self._looking:
                self._looking = True
                self._background.submit(self._look, self._looked, lambda text: None)
        return self._look_s

    def look_now(self) -> None:
        """At the next turn: something has failed there."""
        self._look_s = 0.0

    def _look(self) -> bool:
        try:
            self._storage.list()
        except RemovedError:
            return True
        except OSError:  # an outage
            pass
        return False

    def _looked(self, gone: bool | None, error: str) -> None:
        self._looking, self.is_gone = False, bool(gone)
