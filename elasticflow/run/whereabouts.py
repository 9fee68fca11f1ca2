"""Where a run's folder is by now: one that was moved or removed is no outage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elasticflow.run.folder import RunDir


class Whereabouts:
    """Holds a run's folder: by that it is known whatever its name is by now, if this machine renamed it."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.path
        self._fd = os.open(run.path, os.O_PATH | os.O_DIRECTORY) if isinstance(run.path, Path) else None

    def moved_to(self) -> RunDir | None:
        """Where it is now; None: that is not known, or it was removed."""
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{self._fd}")
            if os.path.samestat(os.stat(path), os.fstat(self._fd or 0)):
                return RunDir(path)
        return None

    def has_left(self) -> bool:
        """Whether the folder itself tells that it has another name, or none: one above it was moved, say."""
        with contextlib.suppress(OSError):
            if self._fd is not None and not os.path.exists(self._path):
                return os.fstat(self._fd).st_nlink == 0 or self.moved_to() is not None
        return False

    def story(self) -> str:
        """What has become of it, for people."""
        if moved := self.moved_to():
            return f"its folder {self._path} was moved to {moved.path} while it ran; go on there by --resume"
        return f"its folder {self._path} was removed while it ran, or moved: nothing more can be saved there"

    def close(self) -> None:
        """Holds it no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
