"""Options of ``elasticflow sweep``, apart from what that imports."""

from __future__ import annotations

import argparse

from elasticflow.cli.train import add_settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``sweep``: its own, and those of each run."""
    parser.add_argument("program", metavar="PROGRAM", help="Python file that defines model() and forward()")
    own = parser.add_argument_group("the sweep")
    text = (
        "what to choose from: arguments of the program (ef.args) and settings, such as "
        "lr=1e-4..1e-1:log,width=64|128; may be given several times"
    )
    own.add_argument("--space", action="append", required=True, metavar="NAME=RANGE,...", help=text)
    text = "of the program's evaluations; cost, or a name of its metrics()"
    own.add_argument("--metric", required=True, metavar="NAME", help=text)
    text = "whether the metric should be large or small (default: max, of cost min)"
    own.add_argument("--goal", choices=("max", "min"), help=text)
    text = "which evaluation of a trial counts: its last (default), or its best"
    own.add_argument("--count", choices=("last", "best"), default="last", help=text)
    own.add_argument(
        "--trials", type=int, default=0, metavar="N", help="so many in all (default: 20, of a grid all)"
    )
    text = "so many at a time (default: 1; with --on and --service: 4)"
    own.add_argument("--parallel", type=int, default=0, metavar="N", help=text)
    text = "who chooses (default: tpe)"
    own.add_argument("--sampler", choices=("tpe", "random", "grid"), default="tpe", help=text)
    text = "who ends trials that promise little, after each evaluation (default: median)"
    own.add_argument("--pruner", choices=("median", "hyperband", "none"), default="median", help=text)
    text = "where the sweep is kept; the same command goes on with it (default: runs/PROGRAM-sweep)"
    own.add_argument("--folder", default="", metavar="DIR", help=text)
    text = "Optuna's database, if others are to see it too (default: a file in the folder)"
    own.add_argument("--storage", default="", metavar="URL", help=text)
    text = "end after so many trials in a row that failed (default: 3)"
    own.add_argument("--max-failures", type=int, default=3, metavar="N", help=text)
    own.add_argument("--plots", metavar="DIR", help="draw Optuna's pictures there at the end")
    own.add_argument("--json", action="store_true", help="print the trials as JSON at the end")
    own.add_argument(
        "--on",
        metavar="CLUSTER",
        help="runs are jobs of kubernetes, slurm or yarn (default: are here)",
    )
    own.add_argument("--service", metavar="NAME|DIR", help="runs are handed in to a service, as best effort")
    runs = parser.add_argument_group("each run")
    add_settings(runs)
    parser.set_defaults(resume=False)
