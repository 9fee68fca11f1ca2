"""``elasticflow predict`` and ``elasticflow evaluate``: a run's model, applied to data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from elasticflow.cli.folders import add_run_argument

if TYPE_CHECKING:
    from elasticflow.applying.commands import Applied
    from elasticflow.checkpoint import Manifest
    from elasticflow.run.folder import RunDir
    from elasticflow.storage import Storage

T = TypeVar("T")


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``elasticflow predict``."""
    _add_common(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE|FOLDER",
        help=".parquet, .csv or .npz; a folder is of Parquet files; also on HDFS and in object stores",
    )
    parser.add_argument("--keep", default="", metavar="NAMES", help="columns of the data, such as id,name")
    text = "the unit of work, and of memory (default: 16,384)"
    parser.add_argument("--part-records", type=int, default=0, metavar="N", help=text)
    text = "records that are predicted at once (default: four slices of training)"
    parser.add_argument("--batch-records", type=int, default=0, metavar="N", help=text)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``elasticflow evaluate``."""
    _add_common(parser)
    parser.add_argument("--json", action="store_true")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help="a file, a pattern, or a folder of Parquet; also on HDFS",
    )
    parser.add_argument("--step", type=int, metavar="N", help="default: the newest that is intact")
    parser.add_argument("--best", action="store_true", help="the best checkpoint, see keep_best in a program")
    parser.add_argument("--program", default="", metavar="FILE", help="in the place of the run's copy of it")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: as there are cores)")
    parser.add_argument("--device", choices=("cpu", "auto", "cuda"), default="cpu")


def predict(arguments: argparse.Namespace) -> int:
    """Prints the output's name once it is there."""
    from elasticflow.applying import commands
    from elasticflow.applying.outputs import format_of
    from elasticflow.applying.workplace import Workplace
    from elasticflow.errors import ConfigError

    for name in ("part_records", "batch_records"):
        if getattr(arguments, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')}: must be a number of records, at least 1.")
    form = format_of(arguments.out)
    is_folder = not arguments.out.rstrip("/").lower().endswith(form.ending)
    place = Workplace(arguments.out, form.ending, is_folder=is_folder)
    done = _applied(
        arguments,
        lambda applied: commands.predict(
            applied,
            place,
            form,
            keep=[name for name in arguments.keep.split(",") if name],
            part_records=arguments.part_records,
            batch_records=arguments.batch_records,
            tell=_show if sys.stderr.isatty() else lambda done, parts: None,
        ),
    )
    more = f", {done.before} of them from before" if done.before else ""
    more += f"; {done.deaths} process{'es' * (done.deaths != 1)} died on the way" if done.deaths else ""
    print(f"{done.records:,} records in {done.parts} part{'s' * (done.parts != 1)}{more}", file=sys.stderr)
    print(arguments.out)
    return 0


def _show(done: int, parts: int) -> None:
    """In a terminal, a line each tenth of the way."""
    if done < parts and done * 10 // parts > (done - 1) * 10 // parts:
        print(f"{done:,} of {parts:,} parts", file=sys.stderr, flush=True)


def evaluate(arguments: argparse.Namespace) -> int:
    """Prints cost and metrics."""
    import msgspec

    from elasticflow.applying import commands
    from elasticflow.cli.progress import scaled

    manifest, values = _applied(arguments, lambda applied: (applied.manifest, commands.evaluate(applied)))
    if arguments.json:
        found = {"step": manifest.step, "epoch": manifest.epoch, **values}
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        told = (f"{name} {'nan' if value is None else scaled(value)}" for name, value in values.items())
        print(f"step {manifest.step}: {'  '.join(told)}")
    return 0


def _applied(arguments: argparse.Namespace, act: Callable[[Applied], T]) -> T:
    """Raises ConfigError, CheckpointError, RunError."""
    from elasticflow import checkpoint
    from elasticflow.applying.commands import Applied
    from elasticflow.cli.folders import find_run
    from elasticflow.errors import ConfigError, RunError
    from elasticflow.run.config import check_texts

    if arguments.best and arguments.step is not None:
        raise ConfigError("--best and --step name two checkpoints; give one of them.")
    if arguments.workers is not None and arguments.workers < 1:
        raise ConfigError(f"--workers {arguments.workers}: must be a number of processes, at least 1.")
    run = find_run(arguments.run, arguments.trust)
    if not run.settings.exists():
        raise RunError(f"{run.path}: is not the folder of a run.")
    out = getattr(arguments, "out", "")
    check_texts(
        {"RUN": str(run.path), "--data": arguments.data, "--program": arguments.program, "--out": out}
    )
    storage = run.checkpoints()

    def choose() -> Applied:
        manifest = _chosen(run, storage, arguments)
        return Applied(
            run, manifest, arguments.data, arguments.program, arguments.workers or 0, device=arguments.device
        )

    return checkpoint.of_one(storage, choose, act)


def _chosen(run: RunDir, storage: Storage, arguments: argparse.Namespace) -> Manifest:
    """Raises CheckpointError."""
    from elasticflow import checkpoint
    from elasticflow.cli.checkpoints import _manifest
    from elasticflow.errors import CheckpointError

    if arguments.best:
        return checkpoint.load_best(storage)
    if arguments.step is not None:
        return _manifest(storage, arguments.run, arguments.step)
    found, damages = checkpoint.newest_intact(storage)
    for damage in damages:
        print(f"warning: {damage}", file=sys.stderr)
    if found is None:
        raise CheckpointError(
            f"{run.path}: holds no committed checkpoint{' that is intact' if damages else ''}."
        )
    return found
