"""Options of ``elasticflow runs`` and ``compare``, apart from what those import."""

from __future__ import annotations

import argparse

from elasticflow.cli.folders import RUNS, add_trust_option


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``runs``."""
    text = f"where their folders are, or a URL on HDFS (default: {RUNS})"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=str(RUNS), help=text)
    parser.add_argument("--json", action="store_true")
    add_trust_option(parser)


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``compare``."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="two runs or more: folders, ids or names")
    parser.add_argument("--json", action="store_true")
    add_trust_option(parser)
