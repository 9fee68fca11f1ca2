"""Which run a job is, or was, the leader of, by ``elasticflow.cluster.index`` in the user's state folder.

Where that has no word of it, because the job began on a machine with another home, SLURM is asked for the
leader's comment, which has the run's folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from elasticflow.cluster.index import IndexEntry, JobIndex
from elasticflow.run.folder import RunPath
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import SlurmError
from elasticflow_slurm.comments import read


def folder() -> Path:
    """Where the files are. Raises RuntimeError where this user has no home."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "elasticflow", "slurm")


def add(job_id: int, name: str, run_dir: Path) -> None:
    """Remembers a job; a home that cannot be written to is no reason not to run it."""
    with contextlib.suppress(OSError, RuntimeError):
        JobIndex(folder(), _age).add(IndexEntry(job_id, name, str(run_dir)))


def find(text: str) -> Path | None:
    """The folder of the newest run whose job has this id or name; None if there is none that is known."""
    known = (entry for entry in chain(_kept(), _told()) if text in (str(entry.id), entry.name))
    there = (e for e in known if text == str(e.id) or os.path.isdir(e.run_dir))
    return next((Path(entry.run_dir) for entry in there), None)


def unasked() -> str:
    """Why runs on SLURM cannot be known here; "": they can, by what this user's home remembers."""
    return ""


def _kept() -> Iterator[IndexEntry]:
    with contextlib.suppress(OSError, RuntimeError):
        yield from JobIndex(folder(), _age)


def _told() -> Iterator[IndexEntry]:
    """By SLURM, if there is one here, and it answers."""
    with contextlib.suppress(SlurmError):
        for job in sorted(choose(os.environ).jobs(), key=lambda job: job.id, reverse=True):
            comment = read(job.comment)
            if comment and comment.run_dir and not job.het:
                yield IndexEntry(job.id, job.name, comment.run_dir)


def _age(path: RunPath) -> float | None:
    return path.stat().st_mtime if path.suffix == ".json" else None
