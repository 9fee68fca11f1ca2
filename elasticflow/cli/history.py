"""``elasticflow runs``: all runs in a folder, the newest first."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from elasticflow.cli.asking import UNKNOWN, formatted
from elasticflow.cli.columns import in_columns
from elasticflow.cli.progress import duration
from elasticflow.cli.summaries import PREFIX, RunSummary, summary_of
from elasticflow.errors import EXIT_UNKNOWN, ConfigError
from elasticflow.process.texts import harmless
from elasticflow.run.folder import RunDir
from elasticflow.storage.urls import is_hdfs, is_url

AT_ONCE = 8
"""So many are looked at at a time."""
HEAD = ("begun", "run", "state", "steps", "metric", "digest", "took", "worker hours", "faults")


def runs(arguments: argparse.Namespace) -> int:
    """Prints one line a run; ``EXIT_UNKNOWN`` where somebody does not answer."""
    found, unread = runs_in(arguments.folder)
    with ThreadPoolExecutor(AT_ONCE) as pool:  # clusters and masters may take seconds to answer
        told = list(pool.map(lambda run: summary_of(run, arguments.trust), found))
    told.sort(key=lambda each: (each.begun_at or 0.0, each.run), reverse=True)
    if arguments.json:
        print(formatted({"runs": told}))
    else:
        for line in in_columns([HEAD, *map(_cells, told)]):
            print(harmless(line))
        for each in told:
            if each.begun_at is None and each.text:
                print(harmless(f"{each.run}: {each.state}: {each.text}"))
    for name in unread:
        print(harmless(f"{name}: may not be read: not shown"), file=sys.stderr)
    return EXIT_UNKNOWN if any(each.state == UNKNOWN for each in told) else 0


def is_place(folder: str) -> bool:
    """Whether that is the URL of one run's checkpoints, by which it is named, and no folder of runs."""
    return is_url(folder) and (not is_hdfs(folder) or RunDir(folder).claim.exists())


def runs_in(folder: str) -> tuple[list[RunDir], list[str]]:
    """Those in it, and what may not be looked into. Raises ConfigError, RunError if there is none."""
    if is_place(folder):
        from elasticflow.cli.by_url import run_of  # brings NumPy along

        return [run_of(folder)], []
    path = RunDir(folder).path
    if not path.is_dir():
        raise ConfigError(f"{folder}: is no folder. Name one in which runs have their folders, such as runs.")
    if RunDir(folder).settings.exists():
        return [RunDir(folder)], []
    found, unread = [], []
    for each in path.iterdir():
        run = RunDir(str(each))
        try:
            if run.settings.exists():
                found.append(run)
        except PermissionError:  # somebody else's, for nobody else
            unread.append(str(each))
    return found, sorted(unread)


def _cells(run: RunSummary) -> tuple[str, ...]:
    known = run.begun_at is not None
    total = "?" if run.steps_total is None else run.steps_total
    return (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.begun_at)) if known else "",
        run.name,
        run.state,
        f"{run.step}/{total}" if known else "",
        run.metric,
        (run.digest or "")[:PREFIX],
        duration(run.seconds) if known else "",
        "" if run.worker_hours is None else f"{run.worker_hours:.2f}",
        "" if run.faults is None else str(run.faults),
    )
