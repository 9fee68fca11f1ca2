"""The process that draws a run's curves: started here, and again if it is killed.

It follows the run as any client does, through each master that there is, and holds a lock, so that there is
one; what it costs is a process of low priority. The end of a run waits for it for no more than a moment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from elasticflow.master.log import say
from elasticflow.process.ending import how_it_ended
from elasticflow.process.guard import guarded_thread
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.tracks import TrackDir

MOMENT_S = 3.0
"""So long trackers may hold up the end of a run, so that what is drawn is there when it is over."""

MOST_DEATHS = 5
"""So often it is begun again."""


def begin_tracking(run: RunDir, config: Config) -> None:
    """Starts it, unless it is there: one that a master before this one has started is waited for first."""
    if not config.track or not isinstance(run.path, Path):
        return
    folder = TrackDir(run.path / "tracks")
    if folder.is_held():
        guarded_thread(_take_over, "tracking", run, folder).start()
    elif process := _started(run):
        guarded_thread(_keep, "tracking", run, process).start()


def _take_over(run: RunDir, folder: TrackDir) -> None:
    """Waits for another master's, of whose end nobody hears here; another follows if the run is not over."""
    folder.wait_until_free(None)
    if not run.report.exists() and (process := _started(run)):
        _keep(run, process)


def _keep(run: RunDir, process: subprocess.Popen[bytes]) -> None:
    """Until it ends by itself: the next one draws what this one has not. If none can, the run goes on."""
    for _ in range(MOST_DEATHS):
        if (code := process.wait()) >= 0:
            return
        say(f"warning: the process that draws the run's curves {how_it_ended(code)}; it is begun again")
        if not (next_one := _started(run)):
            return
        process = next_one


def _started(run: RunDir) -> subprocess.Popen[bytes] | None:
    try:
        with (run.logs / "tracking.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "elasticflow.cli", "track", str(run.path), "--own", "--trust"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        say(f"warning: the run's curves are not drawn: {error}")
        return None


def await_tracking(run: RunDir) -> None:
    """To be called once the run is over: waits until what is committed is drawn, but for a moment at most."""
    if isinstance(run.path, Path) and run.report.exists():
        TrackDir(run.path / "tracks").wait_until_free(MOMENT_S)
