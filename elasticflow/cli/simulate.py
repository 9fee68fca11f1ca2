"""``elasticflow simulate TRACE --gpus N``: what a policy would do with a trace of jobs."""

from __future__ import annotations

import argparse

POLICIES = "elastic, edf-admission, edf, fifo, las or fixed"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``elasticflow simulate``."""
    parser.add_argument("trace", metavar="TRACE", help="a CSV file, one row a job")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--gpus", type=int, metavar="N", help="GPUs of the cluster")
    size.add_argument("--shape", metavar="FILE", help="its shape: a CSV file of switches, nodes, GPUs")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", default=8, help="default: 8")
    parser.add_argument("--policy", metavar="NAME", default="elastic", help=POLICIES)
    parser.add_argument(
        "--profiles", metavar="DIR", help="one MODEL.csv a model (default: throughputs_* near TRACE)"
    )
    parser.add_argument(
        "--overheads",
        metavar="FILE",
        help="what changes cost, as 'elasticflow profile' measured it: its JSON file (default: published)",
    )
    parser.add_argument("--quotas", metavar="FILE", help="weights and most GPUs of users: a CSV file")
    parser.add_argument("--profile-error", type=float, metavar="PART", default=0.0, help="such as 0.2")
    parser.add_argument("--mtbf-days", type=float, metavar="DAYS", help="of a node; default: none fails")
    parser.add_argument("--repair-s", type=float, metavar="S", default=3600.0, help="default: an hour")
    parser.add_argument(
        "--slow", type=float, metavar="PART", default=0.0, help="of the time that a node is slow"
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="of what is by chance")
    parser.add_argument("--out", metavar="DIR", help="write metrics.json and pictures there")
    parser.add_argument("--json", action="store_true", help="print all metrics")


def simulate(arguments: argparse.Namespace) -> int:
    """Simulates, checks the schedule, writes and prints its figures."""
    from elasticflow.cli import simulating

    return simulating.simulate(arguments)
