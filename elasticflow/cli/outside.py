"""Looking at somebody else's run: at what it shows, and at nothing that names programs or addresses."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from elasticflow.cluster.logbook import LogFolder
from elasticflow.errors import RunError
from elasticflow.process.decoding import from_json
from elasticflow.run.dates import span
from elasticflow.run.folder import ENDED, MOST_BYTES, RunDir
from elasticflow.run.telling import LiveStatus, Report, Status
from elasticflow.run.trust import Person, is_anothers, name_of

S = TypeVar("S", bound=Status)
LATE_S = 60.0
"""A status that is older may be that of a run that was killed."""


def is_outside(run: RunDir, trust: bool) -> bool:
    """Whether the run's folder is somebody else's, of whom nothing is to be believed that could do harm."""
    return not trust and isinstance(run.path, Path) and is_anothers(Person.me(), run.path)


def shown(run: RunDir) -> Report | LiveStatus:
    """The report, or the last status, whichever is newer. Raises RunError if neither is shown."""
    report, status = _read(Path(run.report), Report), _read(Path(run.shown), LiveStatus)
    found = [each for each in (report, status) if each]
    if not found:
        raise RunError(_nothing(run))
    at_s, told = max(found, key=lambda each: each[0])
    age_s = time.time() - at_s
    if told.state not in ENDED and age_s > LATE_S:
        told.state = f"{told.state}, {span(age_s)} ago"
    told.text = told.text or "under way"
    return told


def shown_logs(run: RunDir) -> LogFolder:
    """Raises RunError if they are not shown."""
    folder = Path(run.path, "logs")
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise RunError(f"{folder}: is no folder.")
        for each in folder.iterdir():
            if not stat.S_ISREG(each.lstat().st_mode):
                raise RunError(f"{each}: is no file.")
    except OSError as error:
        raise RunError(_nothing(run)) from error
    return LogFolder(Path(run.path))


def _read(path: Path, kind: type[S]) -> tuple[float, S] | None:
    """When it was written, and what it says; None: it is not there. Neither links nor pipes are followed."""
    try:
        with open(path, "rb", opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                raise OSError(errno.EINVAL, "is no file")
            return found.st_mtime, from_json(file.read(MOST_BYTES), kind)
    except (FileNotFoundError, PermissionError):
        return None
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error


def _opened(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _nothing(run: RunDir) -> str:
    owner = name_of(Path(run.path).stat().st_uid)
    return (
        f"{run.path}: belongs to {owner}, and not to you or root, and shows you nothing; with 'share: group' "
        "a run shows its status, logs and report to its folder's group. --trust does as if it were yours."
    )
