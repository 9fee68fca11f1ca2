"""Which run a job is, or was, the leader of, by ``elasticflow.cluster.index`` in the user's state folder.

Where that has no word of it, because the job began on a machine with another home, SLURM is asked for the
leader's comment, which has the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from elasticflow.cluster.index import HomeIndex, IndexEntry
from elasticflow.errors import UnknownError
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import SlurmError, SlurmNotInstalled
from elasticflow_slurm.comments import read


def is_of(job_id: int, run_dir: Path, *, unless_asked: bool = False) -> bool:
    """Whether that run is known to be this job's. unless_asked: what it is if SLURM does not answer."""
    with contextlib.suppress(UnknownError):
        return any(entry.run_dir == str(run_dir) for entry in entries(str(job_id)))
    return unless_asked


def unasked() -> str:
    """Why no more runs on SLURM are known here than this user's home remembers; "": SLURM is asked, too."""
    return "" if shutil.which("squeue") else "SLURM was not asked: there is no squeue here"


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
            for name in dict.fromkeys((job.address, job.id)):
                yield IndexEntry(name, job.name, comment.run_dir, job.submit_at or 0.0)


_INDEX = HomeIndex("slurm", _told)
folder, add, entries = _INDEX.folder, _INDEX.add, _INDEX.entries
