"""Options of ``elasticflow metrics``, apart from what it imports."""

from __future__ import annotations

import argparse

from elasticflow.cli.folders import add_trust_option


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``metrics``."""
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help="the run's folder, or its job's id")
    parser.add_argument("--service", metavar="NAME|DIR", default="", help="instead those of a service")
    parser.add_argument("--port", type=int, metavar="N", default=0, help="default: any free one")
    parser.add_argument("--address", metavar="IP", default="127.0.0.1", help="default: this machine alone")
    text = "a file with the token to ask for (default: one is made, if others than this machine may ask)"
    parser.add_argument("--token-file", metavar="FILE", default="", help=text)
    parser.add_argument("--own", type=int, default=0, help=argparse.SUPPRESS)
    add_trust_option(parser)
