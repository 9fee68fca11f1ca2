"""Options of ``elasticflow serve`` and ``cancel``: every command knows them, and few need a scheduler."""

from __future__ import annotations

import argparse

SERVICE = "a service, by its name, or by its folder with a slash in it: see 'elasticflow serve'"


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="its settings, such as conf/service.yaml")
    text = "of a service that is running: take this node away (--down), or give it back (--up)"
    parser.add_argument("--node", type=int, metavar="N", help=text)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--down", action="store_true")
    way.add_argument("--up", action="store_true")


def add_cancel_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``cancel``."""
    parser.add_argument("task", metavar="TASK", help="as 'elasticflow jobs --service' names it")
    parser.add_argument("--service", metavar="NAME|DIR", default="default", help=SERVICE)
