"""Options of ``elasticflow track``, apart from what it imports."""

from __future__ import annotations

import argparse

from elasticflow.cli.folders import add_run_argument
from elasticflow.run.tracks import TRACKERS


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``track``."""
    add_run_argument(parser)
    text = f"of {', '.join(TRACKERS)} (default: as the run's settings say)"
    parser.add_argument("--with", dest="trackers", metavar="NAME,...", default="", help=text)
    parser.add_argument("--to", metavar="FOLDER", default="", help="where (default: RUN/tracks)")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
