"""Options of the verbs that are not worth a module each."""

from __future__ import annotations

import argparse
import re

from elasticflow.cli.folders import add_run_argument


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Which run is meant, and nothing else."""
    add_run_argument(parser)


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``pack``."""
    parser.add_argument("file", metavar="FILE", help="such as environment.tar.gz")
    parser.add_argument("--python", metavar="VENV", default="", help="its folder (default: the running one)")


def add_operate_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``operate``."""
    text = "settings of all ElasticFlowJobs that do not say otherwise, such as conf/kubernetes.yaml"
    parser.add_argument("--config", metavar="FILE", help=text)


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``check``."""
    parser.add_argument("program", metavar="PROGRAM")
    for name in ("batch-size", "slices", "seed", "threads"):
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--device", metavar="auto|cpu|cuda")
    parser.add_argument("--drop-last", action="store_true", default=None)
    parser.add_argument("--data", metavar="FILE")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--set", dest="set_args", action="append", metavar="NAME=VALUE")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--debug", action="store_true", help="one slice, here: print and breakpoint() work")


def add_new_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``new``."""
    parser.add_argument("kind", metavar="pytorch|keras", choices=("pytorch", "keras"))
    parser.add_argument("file", metavar="FILE", nargs="?", default="program.py")


def add_example_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``example``."""
    parser.add_argument("name", metavar="NAME", nargs="?", default="")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``data describe``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = actions.add_parser("describe", help="types, ranges, values, and what would not fit")
    describe.add_argument(
        "file", metavar="FILE", help="a file, a pattern, or a folder of Parquet; also on HDFS"
    )
    describe.add_argument("--json", action="store_true")
    text = "write the values of columns of texts there, for ef.data.vocabularies(OUT)"
    describe.add_argument("--vocabularies", metavar="OUT", help=text)


def add_status_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``status``."""
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watch", action="store_true", help="until the run is over")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``report``."""
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true")


def add_scale_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``scale``."""
    add_run_argument(parser)
    parser.add_argument("workers", metavar="N", type=_workers)


def _workers(text: str) -> int:
    """The master says how many there may be; it is not told more than a message can carry."""
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text} is no number of workers")
    return int(text)


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``checkpoint``, one action after the other."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in {
        "list": "one line a checkpoint",
        "show": "what one holds",
        "verify": "read every byte of one, or of all",
        "digest": "one SHA-256 over all parameters, buffers and slots",
        "copy": "one to another place, as a run that can go on from it there",
    }.items():
        each = actions.add_parser(action, help=text)
        add_run_argument(each, "dir")
        if action == "copy":
            each.add_argument("to", metavar="TO", help="a new folder, or URL on HDFS, for --resume --run-dir")
        if action != "list":
            each.add_argument("--step", type=int, metavar="N", help="default: the newest")
        if action in ("list", "show", "verify"):
            each.add_argument("--json", action="store_true")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``export``."""
    add_run_argument(parser)
    parser.add_argument(
        "file", metavar="FILE", help=".npz .safetensors .h5 .pt; .pt2 .onnx .keras .savedmodel, which compute"
    )
    parser.add_argument("--step", type=int, metavar="N", help="default: the newest")
    parser.add_argument("--best", action="store_true", help="the best checkpoint, see keep_best in a program")
    parser.add_argument("--ema", action="store_true", help="parameters' moving averages in their place")
