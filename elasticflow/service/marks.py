"""A run that was handed in bears a mark, by which it is known from another that somebody begins at its place.

And the folder of the service that has it, on this machine: a copy of that folder is a service as well, and
two that grant workers to one run stop and begin it in turn.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from elasticflow.errors import RunError
from elasticflow.process.locked_files import is_locked
from elasticflow.run.folder import RunDir, read_bounded, replace

LOCK = "lock"
"""In a service's folder: held while it runs."""


def mark_of(run: RunDir) -> str | None:
    """ "": it has none. None: there is no run. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return _read(run)[0]
    return "" if run.settings.exists() else None


def marked(run: RunDir) -> str:
    """Its mark, made now if it has none. Raises OSError."""
    if not (mark := mark_of(run)):
        mark = secrets.token_hex(8)
        replace(run.mark, mark.encode())
    return mark


def claim(run: RunDir, service: Path) -> None:
    """For the service in this folder. Raises RunError where another one has it, and runs; OSError."""
    mark, other = _read(run)
    if other == str(service):
        return
    with contextlib.suppress(OSError):  # it is gone, or was moved
        if other and not os.path.samefile(other, service) and is_locked(Path(other, LOCK)):
            raise RunError(
                f"{service}: {run.path} is a run of the service in {other}, which is running, and of which "
                "this folder is a copy: both would grant its workers. End that one first."
            )
    replace(run.mark, f"{mark}\n{service}".encode())


def _read(run: RunDir) -> tuple[str, str]:
    mark, _, service = read_bounded(run.mark).decode(errors="replace").partition("\n")
    return mark, service
