"""Which run a job is, or was, the leader of, by ``elasticflow.cluster.index`` in the user's state folder.

Where that has no word of it, because the job began on a machine with another home, SLURM is asked for the
leader's comment, which has the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from elasticflow.cluster.index import IndexEntry, JobIndex
from elasticflow.errors import UnknownError
from elasticflow.run.folder import RunPath
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import SlurmError, SlurmNotInstalled
from elasticflow_slurm.comments import read


def folder() -> Path:
    """Where the files are. Raises RuntimeError where this user has no home."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "elasticflow", "slurm")


def add(job_id: int, name: str, run_dir: Path) -> None:
    """Remembers a job; a home that cannot be written to is no reason not to run it."""
    with contextlib.suppress(OSError, RuntimeError):
        JobIndex(folder(), _age).add(IndexEntry(job_id, name, str(run_dir)))


def entries(text: str) -> Iterator[IndexEntry]:
    """See ``elasticflow.cluster.index``. What this user's home remembers comes first."""
    found = False
    for entry in _kept(text):
        found = True
        yield entry
    if not (found and text):
        yield from (entry for entry in _told() if not text or _is_meant(text, entry))


def is_of(job_id: int, run_dir: Path) -> bool:
    """Whether that run is known to be this job's."""
    with contextlib.suppress(UnknownError):
        return any(entry.run_dir == str(run_dir) for entry in entries(str(job_id)))
    return False


def unasked() -> str:
    """Why no more runs on SLURM are known here than this user's home remembers; "": SLURM is asked, too."""
    return "" if shutil.which("squeue") else "SLURM was not asked: there is no squeue here"


def _kept(text: str) -> Iterator[IndexEntry]:
    try:
        yield from JobIndex(folder(), _age).meant(text, partial(_is_meant, text))
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return
    except OSError as error:
        raise UnknownError(f"{folder()}, where jobs are remembered, cannot be read: {error}") from error


def _is_meant(text: str, entry: IndexEntry) -> bool:
    return text == str(entry.id) or (text == entry.name and not _is_gone(entry.run_dir))


def _is_gone(run_dir: str) -> bool:
    """Whether it is sure that this folder is not there."""
    try:
        return not stat.S_ISDIR(os.stat(run_dir).st_mode)
    except OSError as error:
        return isinstance(error, (FileNotFoundError, NotADirectoryError))


def _told() -> Iterator[IndexEntry]:
    """By SLURM, if there is one here. Raises UnknownError if it does not answer."""
    try:
        jobs = choose(os.environ).jobs()
    except SlurmNotInstalled:
        return
    except SlurmError as error:
        raise UnknownError(f"SLURM does not answer: {error}") from error
    for job in sorted(jobs, key=lambda job: job.id, reverse=True):
        comment = read(job.comment)
        if comment and comment.run_dir and not job.het:
            yield IndexEntry(job.id, job.name, comment.run_dir, job.submit_at or 0.0)


def _age(path: RunPath) -> float | None:
    return path.stat().st_mtime if path.suffix == ".json" else None
