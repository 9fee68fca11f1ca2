"""The command line: what was asked for is done, and how errors leave it."""

from __future__ import annotations

import contextlib
import sys

from elasticflow.cli.terminal import harmless_output, stand_in_for_closed
from elasticflow.cli.verbs import parser, run
from elasticflow.errors import EXIT_UNKNOWN, ElasticFlowError, UnknownError
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
            print(f"Error: {error}", file=sys.stderr)
        return EXIT_UNKNOWN if isinstance(error, UnknownError) else 1
    except BrokenPipeError:
        return 1
    except OSError as error:  # a storage that is away
        with contextlib.suppress(OSError):
            print(f"Error: {error}", file=sys.stderr)
        return EXIT_UNKNOWN if is_away(error) else 1
    except KeyboardInterrupt:
        return 130
