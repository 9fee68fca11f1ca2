"""The process that draws a run's curves: started here, and then nobody's concern.

It follows the run as any client does, through each master that there is, and holds a lock, so that there is
one; what it costs is a process of low priority. The end of a run waits for it for no more than a moment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from elasticflow.master.log import say
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.tracks import TrackDir

MOMENT_S = 3.0
"""So long trackers may hold up the end of a run, so that what is drawn is there when it is over."""


def begin_tracking(run: RunDir, config: Config) -> subprocess.Popen[bytes] | None:
    """Starts it, unless it is there. The process is the caller's to keep; None: there is none."""
    if not config.track or not isinstance(run.path, Path) or TrackDir(run.path / "tracks").is_held():
        return None
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
