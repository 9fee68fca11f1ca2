"""Options of ``elasticflow ui``, apart from what it imports."""

from __future__ import annotations

import argparse

from elasticflow.cli.folders import RUNS, add_trust_option


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ui``."""
    text = f"a run, or a folder in which runs have theirs (default: {RUNS})"
    parser.add_argument("where", metavar="RUN|FOLDER", nargs="?", default="", help=text)
    text = "instead all runs of a service, by its name or folder, with what each was promised and why"
    parser.add_argument("--service", metavar="NAME|DIR", default="", help=text)
    parser.add_argument("--port", type=int, metavar="N", default=0, help="default: any free one")
    parser.add_argument("--address", metavar="IP", default="127.0.0.1", help="default: this machine alone")
    text = "let who has the page's address stop and resize runs, too; without, it only shows them"
    parser.add_argument("--steer", action="store_true", help=text)
    add_trust_option(parser)
