"""Options of ``elasticflow serve``, ``cancel`` and ``replay``: every command knows them, few need more."""

from __future__ import annotations

import argparse

SERVICE = "a service, by its name, or by its folder with a slash in it: see 'elasticflow serve'"


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve``."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="its settings, such as conf/service.yaml")
    text = "of a service that is running: take this node away (--down), or give it back (--up)"
    parser.add_argument("--node", type=int, metavar="N", help=text)
    text = (
        "of a service that is running: use no more than N workers, until --share all; "
        "returns when the runs have given back the rest"
    )
    parser.add_argument("--share", metavar="N|all", help=text)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--down", action="store_true")
    way.add_argument("--up", action="store_true")


def add_cancel_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``cancel``."""
    parser.add_argument("task", metavar="TASK", help="as 'elasticflow jobs --service' names it")
    parser.add_argument("--service", metavar="NAME|DIR", default="default", help=SERVICE)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``replay``."""
    text = "a service's folder or name, the journal/ in it or a copy of that, or one TERM.jsonl there"
    parser.add_argument("journal", metavar="JOURNAL", help=text)
    parser.add_argument("--policy", metavar="NAME", help="what another one would have met, too")
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="what more nodes, or fewer, would have met, too"
    )
    parser.add_argument("--out", metavar="DIR", help="write pictures of the last simulation there")
    parser.add_argument("--json", action="store_true")
