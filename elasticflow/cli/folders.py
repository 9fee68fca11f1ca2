"""Where runs lie that were given no folder, and which run a person means."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from elasticflow.cli.outside import is_outside
from elasticflow.cluster.contract import CLUSTERS, load_cluster
from elasticflow.cluster.index import look_up
from elasticflow.errors import ConfigError, NoRunError, UnknownError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.trust import check_trust
from elasticflow.storage.urls import is_url

RUNS = Path("runs")


def _folders(chosen: Config) -> list[tuple[int, Path]]:
    """Folders of earlier runs of the program that were named by us, with their numbers."""
    stem = Path(chosen.program).stem
    found = [(re.fullmatch(rf"{re.escape(stem)}-(\d+)", path.name), path) for path in RUNS.glob("*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def new_folder(chosen: Config) -> Path:
    """Where the program's next run goes."""
    last = max((number for number, _ in _folders(chosen)), default=0)
    return RUNS / f"{Path(chosen.program).stem}-{last + 1}"


def next_run_dir(chosen: Config) -> str:
    """The same as a whole path, for those who look for it elsewhere."""
    return os.path.abspath(new_folder(chosen))


def newest_folder(chosen: Config) -> Path:
    """Where its last one is. Raises ConfigError if there is none."""
    folders = _folders(chosen)
    if not folders:
        what = os.path.basename(chosen.program)
        raise ConfigError(
            f"--resume: there is no run of {what} in {RUNS.resolve()}; name its folder, or on YARN its URL, "
            "with --run-dir."
        )
    return folders[-1][1]


def add_run_argument(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """``RUN``, and ``--trust``."""
    parser.add_argument(name, metavar=name.upper(), help="the run's folder or URL, or its job's id or name")
    add_trust_option(parser)


def add_trust_option(parser: argparse._ActionsContainer) -> None:
    """``--trust``."""
    text = "use a run's folder that belongs to somebody else, or that others may write; it is executed"
    parser.add_argument("--trust", action="store_true", help=text)


def find_run(text: str, trust: bool) -> RunDir:
    """The run in a folder, or the one whose job on a cluster has this id or name.

    trust: whoever has a hand in that folder. Raises RunError if there is neither, or nobody is to be trusted.
    """
    run = _find(text)
    trust_or_check(run, trust)
    return run


def find_shown(text: str, trust: bool) -> tuple[RunDir, bool]:
    """The same for commands that only look; and whether it is somebody else's, see ``cli.outside``."""
    run = _find(text)
    outside = is_outside(run, trust)
    if not outside:
        trust_or_check(run, trust)
    return run, outside


def trust_or_check(run: RunDir, trust: bool) -> None:
    """Raises RunError if somebody else has a hand in the run's folder, unless that is what is wanted."""
    if not trust:
        check_trust(run.path)


def _find(text: str) -> RunDir:
    if is_url(text):
        from elasticflow.cli.by_url import run_of  # brings NumPy along

        return run_of(text)
    if os.sep in text or Path(text).exists():
        return RunDir(text)
    indexes = [load_cluster(cluster, "index") for cluster in CLUSTERS]
    found = look_up(text, indexes)
    if found.entries:
        newest, *others = found.entries
        if others:
            print(
                f"Note: there are other runs called {text}; this is the newest, {newest.run_dir}. "
                f"'elasticflow jobs {text}' lists them.",
                file=sys.stderr,
            )
        return RunDir(newest.run_dir)
    if found.silent:
        raise UnknownError(
            f"{text}: whether there is such a run is not known just now: {'; '.join(found.silent)}. "
            "Try again later."
        )
    unasked = "".join(f" ({why})" for index in indexes if (why := index.unasked()))
    raise NoRunError(
        f"{text}: is neither the folder of a run, nor the id or name of a job that is known here{unasked}. "
        "That of a batch script of your own is known once it has begun."
    )
