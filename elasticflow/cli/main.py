"""The command line: what was asked for is done, and how errors leave it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path

from elasticflow.cli.terminal import harmless_output, stand_in_for_closed
from elasticflow.cli.verbs import parser, run
from elasticflow.errors import EXIT_UNKNOWN, CheckpointError, ElasticFlowError, UnknownError
from elasticflow.process.retry import is_away
from elasticflow.process.stamps import check_format
from elasticflow.process.texts import bear_any_text


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    0: done. 1: an error, told after ``Error:``. 2: wrong usage. 3: a run was stopped before its end.
    75: a run could not be asked now, so that nothing is known of it.
    """
    stand_in_for_closed()
    bear_any_text()
    with harmless_output():
        return _told(argv)


def _told(argv: list[str] | None) -> int:
    try:
        check_format()
        return run(parser().parse_args(argv))
    except ElasticFlowError as error:
        with contextlib.suppress(OSError):  # nobody reads it any more
            whose = _whose(error.__cause__) if isinstance(error, CheckpointError) else ""
            print(f"Error: {error}{whose}", file=sys.stderr)
        return EXIT_UNKNOWN if isinstance(error, UnknownError) else 1
    except BrokenPipeError:
        return 1
    except OSError as error:  # a storage that is away
        with contextlib.suppress(OSError):
            print(f"Error: {error}{_whose(error)}", file=sys.stderr)
        return EXIT_UNKNOWN if is_away(error) else 1
    except KeyboardInterrupt:
        return 130


def _whose(error: BaseException | None) -> str:
    """Of a place on the disk that may not be used: whose it is, or the folder on the way that keeps it."""
    from elasticflow.run.trust import name_of

    if not isinstance(error, PermissionError) or not isinstance(error.filename, (str, bytes)):
        return ""
    if error.strerror != os.strerror(errno.EACCES):  # of HDFS, or a store, whose paths look like those here
        return ""
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):  # it is not there, or cannot be seen: who keeps it is further up
            found = place.stat()
            mode = stat.S_IMODE(found.st_mode)
            owner, me = name_of(found.st_uid), name_of(os.geteuid())
            return f": {place} belongs to {owner} (mode {mode:04o}), and you are {me}"
    return ""
