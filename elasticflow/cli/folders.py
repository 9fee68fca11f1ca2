"""Where runs lie that were given no folder, and which run a person means."""

from __future__ import annotations

import os
import re
from pathlib import Path

from elasticflow.cluster.contract import CLUSTERS, load_cluster
from elasticflow.errors import ConfigError, RunError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir

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


def find_run(text: str) -> RunDir:
    """The run in a folder, or the one whose job on a cluster has this id or name.

    Raises RunError if there is neither.
    """
    if os.sep in text or Path(text).exists():
        return RunDir(text)
    indexes = [load_cluster(cluster, "index") for cluster in CLUSTERS]
    for index in indexes:
        if (folder := index.find(text)) is not None:
            return RunDir(folder)
    unasked = "".join(f" ({why})" for index in indexes if (why := index.unasked()))
    raise RunError(
        f"{text}: is neither the folder of a run, nor the id or name of a job that is known here{unasked}."
    )
