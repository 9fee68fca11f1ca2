"""Whether a run's folder is still there, and where its checkpoints lie: what was removed is no outage."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from elasticflow.checkpoint.place import lost_to
from elasticflow.master.reporting import drain, leave_report
from elasticflow.process.retry import RemovedError
from elasticflow.run.folder import RunDir
from elasticflow.run.telling import TAKEN_OVER, Report
from elasticflow.run.whereabouts import Whereabouts
from elasticflow.storage import Storage, storage_of
from elasticflow.storage.background import Background

LOOK_S = 2.0
"""Between two looks."""


class Ground:
    """Looks after a run's folder, in the background, where a storage that hangs holds up nobody.

    place: where checkpoints lie; "": in the folder. It is looked at when something has failed there, since
    an object store charges for each look.
    """

    def __init__(self, run: RunDir, place: str, background: Background) -> None:
        self.story = ""
        """What has become of it, for people; "": all is there."""
        self.folder_is_gone = False
        self.whereabouts = Whereabouts(run)
        self._run, self._folder, self._background = run, run.storage(), background
        self._place, self._claim = place, run.claim_id() if place else ""
        self._look_s, self._looking, self._has_failed = 0.0, False, False

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
        self._look_s, self._has_failed = 0.0, True

    def guard(self, act: Callable[[], None]) -> None:
        """Has something written, unless another run has the folder by now, or the place: that would go on
        from it.

        Raises RemovedError; OSError where that cannot be seen.
        """
        if self.whereabouts.is_anothers():
            raise RemovedError(self.whereabouts.story())
        if story := self._lost_to():
            raise RemovedError(story)
        act()

    def tidy(self, act: Callable[[], None]) -> None:
        """Has something removed, where this is known to be still this run's: whoever has the folder, or the
        place, by now may be writing there."""
        if not self.folder_is_gone:
            with suppress(OSError):
                self.guard(act)

    def _lost_to(self) -> str:
        """Who goes on with the checkpoints by now, if that is not this run. Raises OSError."""
        owner = lost_to(self._place, self._claim) if self._claim else None
        return f"{self._place}: {owner} {TAKEN_OVER}" if owner else ""

    def leave(self, report: Report, patience_s: float) -> None:
        """Leaves the report where the folder is by now, if that is known, and never in another run's; then
        what is under way is done, as far as patience goes."""
        run = self.whereabouts.moved_to() if self.folder_is_gone else self._run
        if run:
            has_left = self.whereabouts.has_left if run is self._run else lambda: False
            until_s = time.monotonic() + patience_s
            leave_report(run, report, patience_s, has_left)
            drain(self._background, until_s - time.monotonic())

    def _look(self) -> tuple[bool, str]:
        """Whether the folder is gone; and what has become of the place."""
        if _is_gone(self._folder) or self.whereabouts.has_left():
            return True, ""
        has_failed, self._has_failed = self._has_failed, False
        if not self._place or not has_failed:
            return False, ""
        if _is_gone(storage_of(self._place)):
            return False, f"{self._place}, where its checkpoints lay, was removed while it ran"
        with suppress(OSError):
            return False, self._lost_to()
        return False, ""

    def _looked(self, gone: tuple[bool, str] | None, error: str) -> None:
        self._looking = False
        self.folder_is_gone, self.story = gone or (False, "")
        if self.folder_is_gone:
            self.story = self.whereabouts.story()


def _is_gone(storage: Storage) -> bool:
    try:
        storage.list()
    except RemovedError:
        return True
    except OSError:  # an outage
        pass
    return False
