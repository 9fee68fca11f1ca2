"""``elasticflow attach``: shows a run that is under way as ``train`` does."""

from __future__ import annotations

import argparse

from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import find_run
from elasticflow.cli.progress import Display
from elasticflow.cli.terminal import lasting_output
from elasticflow.cli.watching import follow, show_end
from elasticflow.cluster.presence import how_it_ended, presence_of
from elasticflow.errors import RunError
from elasticflow.process.stamps import stamp_if_json
from elasticflow.run.folder import EXIT_CODES, RunDir

RECALLED = 10
"""So many events of the time before are shown."""


def attach(arguments: argparse.Namespace) -> int:
    """Shows the run until it is over, and returns its exit code. Ctrl-C only looks away: 130."""
    run = find_run(arguments.run, arguments.trust)
    run.config()
    presence = presence_of(run)
    if not presence.is_alive():
        raise RunError(f"{run.path}: this run is over{how_it_ended(run, presence)}.")
    return attach_to(run)


def attach_to(run: RunDir) -> int:
    """The same, for a run that may have ended by now."""
    stamp_if_json(run.config().log_format, "attach")
    with lasting_output():
        try:
            with Display(RECALLED) as display:
                report = follow(run, display, _look_away)
        except KeyboardInterrupt:
            print(
                f"{run.path}: goes on. 'elasticflow attach {run.path}' shows it again, "
                f"'elasticflow stop {run.path}' ends it with a checkpoint."
            )
            return 130
        if report is None and not run.path.exists():
            text = "its folder was removed while it ran, or moved, which ends it"
            raise RunError(f"{run.path}: {text}; --resume goes on where it is now.")
        if report is None:
            raise RunError(f"{run.path}: this run is over{how_it_ended(run, presence_of(run))}.")
        show_end(run, report)
        return EXIT_CODES[report.state]


def _look_away(connection: Connection) -> None:
    raise KeyboardInterrupt
