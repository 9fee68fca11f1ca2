"""Options of ``elasticflow serve-model``, apart from what it imports."""

from __future__ import annotations

import argparse

from elasticflow.cli.folders import add_run_argument


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``serve-model``."""
    add_run_argument(parser)
    text = "this checkpoint (default: the newest, and each newer one as soon as it is committed)"
    parser.add_argument("--step", type=int, metavar="N", help=text)
    text = "the best checkpoint, and each better one, see keep_best in a program"
    parser.add_argument("--best", action="store_true", help=text)
    parser.add_argument("--program", default="", metavar="FILE", help="in the place of the run's copy of it")
    parser.add_argument("--port", type=int, default=8500, metavar="N", help="0: any free one (default: 8500)")
    parser.add_argument("--address", metavar="IP", default="127.0.0.1", help="default: this machine alone")
    text = "a file with the token to ask for (default: one is made, if others than this machine may ask)"
    parser.add_argument("--token-file", metavar="FILE", default="", help=text)
    parser.add_argument("--tls-cert", metavar="FILE", default="", help="serve HTTPS with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", default="", help="and this key")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: as there are cores)")
    parser.add_argument("--device", choices=("cpu", "auto", "cuda"), default="cpu")
    text = "megabytes of a request at most (default: 64)"
    parser.add_argument("--max-request-mb", type=int, default=64, metavar="N", help=text)
    text = "requests that may wait; more are refused with 503 (default: 1024)"
    parser.add_argument("--max-waiting", type=int, default=1024, metavar="N", help=text)
    text = "until a request is answered, or refused with 504 (default: 30)"
    parser.add_argument("--timeout-s", type=float, default=30.0, metavar="S", help=text)
    text = "between looks for another checkpoint; 0: none (default: 5)"
    parser.add_argument("--reload-s", type=float, default=5.0, metavar="S", help=text)
