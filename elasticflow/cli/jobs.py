"""``elasticflow jobs``: the runs that were submitted to clusters, and how each is."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elasticflow.cli.asking import ABSENT, UNKNOWN, formatted
from elasticflow.cli.columns import in_columns
from elasticflow.cluster.contract import CLUSTERS, load_cluster
from elasticflow.cluster.index import IndexEntry, look_up
from elasticflow.cluster.presence import presence_of
from elasticflow.errors import EXIT_UNKNOWN, ConfigError, ElasticFlowError, NoRunError
from elasticflow.run.folder import RunDir

SHOWN = 20
"""So many runs are listed, unless more are asked for."""
AT_ONCE = 8
"""So many are asked about at a time."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``jobs``."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="only those whose job is called so"
    )
    parser.add_argument("--last", type=int, metavar="N", default=SHOWN, help=f"so many (default: {SHOWN})")
    parser.add_argument("--json", action="store_true")
    text = "instead those of a service, by its name or folder: what each was granted and promised, and why"
    parser.add_argument("--service", metavar="NAME|DIR", help=text)
    text = "of a service: its plan as a picture, here or as a file; who gets how many workers until when"
    parser.add_argument("--plan", metavar="FILE.png|.html", nargs="?", const="", help=text)


def jobs(arguments: argparse.Namespace) -> int:
    """Prints one line a run, the newest first; ``EXIT_UNKNOWN`` where somebody does not answer."""
    if arguments.service:
        from elasticflow.cli.serve import list_tasks

        return list_tasks(arguments)
    if arguments.plan is not None:
        raise ConfigError("--plan: is a service's; name it with --service.")
    found = look_up(arguments.name, [load_cluster(cluster, "index") for cluster in CLUSTERS])
    with ThreadPoolExecutor(AT_ONCE) as pool:  # clusters may take seconds to say that a job is gone
        rows = list(pool.map(_row, found.entries[: max(0, arguments.last)]))
    if arguments.json:
        print(formatted({"jobs": rows, "unanswered": found.silent}))
    else:
        _print(rows, found.silent)
    is_unknown = found.silent or any(row["state"] == UNKNOWN for row in rows)
    return EXIT_UNKNOWN if is_unknown else 0


def _row(entry: IndexEntry) -> dict[str, Any]:
    state, text = _state(RunDir(entry.run_dir))
    known = {"id": str(entry.id), "name": entry.name, "run": entry.run_dir, "begun_at": entry.begun_at}
    return {**known, "state": state, "text": text}


def _state(run: RunDir) -> tuple[str, str]:
    """As ``status`` tells it, but of one that has a master, which is not asked: ``running``."""
    try:
        if report := run.read_report():
            return report.state, report.text
        run.config()
        presence = presence_of(run)
        alive = presence.is_alive()
        if presence.silence():
            return UNKNOWN, presence.silence()
        if not alive:
            return "killed", "this run is over, and left no report"
        return ("running", "") if presence.has_master() else ("waiting", presence.waits_for())
    except NoRunError as error:
        return ABSENT, str(error)
    except (ElasticFlowError, OSError) as error:
        return UNKNOWN, str(error)


def _print(rows: list[dict[str, Any]], silent: list[str]) -> None:
    cells = [("begun", "job", "name", "state", "run")]
    for row in rows:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["begun_at"]))
        cells.append((begun, row["id"], row["name"], row["state"], row["run"]))
    print(*in_columns(cells), sep="\n")
    for words in silent:
        print(f"not complete: {words}")
