"""Which run a job is, or was, the leader of: SLURM forgets jobs, and people name them.

One small file a job, in the user's state folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from elasticflow.run_dir import publish

KEPT = 1000


class Entry(msgspec.Struct, frozen=True):
    """A leader's job."""

    id: int
    name: str
    run_dir: str


def folder() -> Path:
    """Where the files are."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "elasticflow", "slurm")


def add(job_id: int, name: str, run_dir: Path) -> None:
    """Remembers a job; a home that cannot be written to is no reason not to run it."""
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(folder() / f"{job_id}.json", Entry(job_id, name, str(run_dir)))
        for path in _newest_first()[KEPT:]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def find(text: str) -> Path | None:
    """The folder of the newest run whose job has this id or name."""
    for path in _newest_first():
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        except (OSError, msgspec.MsgspecError):
            continue
        if text in (str(entry.id), entry.name) and Path(entry.run_dir).is_dir():
            return Path(entry.run_dir)
    return None


def _newest_first() -> list[Path]:
    return sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
